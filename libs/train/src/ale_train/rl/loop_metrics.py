"""Measures a loop at work: which part is in which state, what became of the tokens, and what to change.

After each step the metrics have the seconds of each state and the counts of tokens. An event `roles` has the spans of
trainer and engine (for `ale report` and `ale trace`), the place of the trainer, and one sentence about who waits for
whom.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol, runtime_checkable

from ale.session.session import RecordedSession
from ale.trajectory import Trajectory
from ale_train.config.rl import RLConfig
from ale_train.rl.rollout_producer import RolloutProducer
from ale_train.rl.rollout_slots import RolloutSlots
from ale_train.rl.token_accounting import TokenAccounting
from ale_train.rl.utilization import TRAINER_STATES, EngineRole, Role, Span, advice, coarsen, role_metrics
from ale_train.workbench.workbench import Workbench

LAPS = 4
"""How many steps the sentence is about at most; sampling ahead comes in bursts."""


@runtime_checkable
class Placed(Protocol):
    """A trainer that reports where it computes."""

    @property
    def place(self) -> str:
        """The device that it computes on, for people, such as `cuda:1`."""
        ...


class LoopMetrics:
    """Collects the metrics of the loop; use it as a context manager around the steps."""

    def __init__(self, bench: Workbench, config: RLConfig, slots: RolloutSlots, producer: RolloutProducer) -> None:
        self._bench, self._config, self._slots, self._producer = bench, config, slots, producer
        self.trainer = Role(TRAINER_STATES)
        self._engine = EngineRole()
        self._good = 0
        """How many rollouts could be trusted."""
        self._laps: deque[tuple[dict[str, float], dict[str, float]]] = deque(maxlen=LAPS)

    async def __aenter__(self) -> None:
        self._ledger = TokenAccounting(
            self._bench.store
        )  # a resumed run has undone by now what came after its checkpoint
        self._bench.sessions.sampling = self._sampling
        self._advance, self._bench.rollouts.advance = self._bench.rollouts.advance, self._count
        self._lap()

    async def __aexit__(self, *exc: object) -> None:
        self._bench.sessions.sampling = nullcontext
        self._bench.rollouts.advance = self._advance

    @contextmanager
    def _sampling(self, session: RecordedSession) -> Iterator[None]:
        with self._engine.sampling(), self._producer.spares.sampling(session):
            yield

    def _count(self) -> None:
        self._good += 1
        self._advance()

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """New weights go from the trainer to the engine."""
        self.trainer.enter("publish")
        with self._engine.loading():
            yield

    @property
    def at_engines(self) -> int:
        """How many requests are at the engines."""
        return self._engine.requests

    def moves(self) -> Hashable:
        """Return a value that is another one whenever something has moved (see `Watchdog`)."""
        running = frozenset(map(id, list(self._bench.rollouts.running)))  # a list, as another thread calls this
        tokens = self._engine_metrics().get("sampled_tokens")
        return self._engine.answered, tokens, running, self.achieved()

    def achieved(self) -> Hashable:
        """Return a value that is another one whenever a rollout is good or the trainer has gone on."""
        return self._good, self.trainer.changes

    def states(self) -> dict[str, Any]:
        """Return the state of each role now."""
        return {
            "trainer": self.trainer.state,
            "engine": self._engine.state,
            "engine_metrics": self._engine_metrics(),
        }

    def _engine_metrics(self) -> dict[str, float]:
        """Return the engine's metrics; nothing if it fails to report them, since the rest shows whether anything
        moves."""
        try:
            return self._bench.engine.metrics()
        except Exception:
            return {}

    def _lap(self) -> tuple[dict[str, float], dict[str, float]]:
        """End a lap of both roles at the same moment."""
        now = time.monotonic()
        return self.trainer.lap(now), self._engine.lap(now)

    def step_metrics(self, step: int, trained: Sequence[Trajectory]) -> dict[str, float]:
        """Return the metrics of the step that ends now, and note its spans and advice."""
        trainer, engine = self._lap()
        found = role_metrics(trainer, engine) | self._producer.buffer_metrics()
        found["in_flight/limit"] = float(self._slots.take_lowest())
        self._laps.append((trainer, engine))
        sentence = advice(self._laps, self._config.async_ratio, self._config.batches_ahead)
        roles = {"trainer": _in_unix_time(self.trainer.spans), "engine": _in_unix_time(coarsen(self._engine.spans))}
        backend = self._bench.backend
        place = backend.place if isinstance(backend, Placed) else ""
        version = self._bench.engine.version
        self._bench.store.add_event("roles", step=step, version=version, advice=sentence, place=place, **roles)
        return found | self._ledger.close(trained, self._producer.open_groups, self._producer.replaced_tokens)


def _in_unix_time(spans: Sequence[Span]) -> list[list[str | float]]:
    offset = time.time() - time.monotonic()
    return [[state, round(began + offset, 4), round(ended + offset, 4)] for state, began, ended in spans]
