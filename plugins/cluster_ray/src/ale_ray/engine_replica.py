"""An engine's actor as a replica of the pool in the run's process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from ale.errors import EngineError
from ale.specs.engine import GenerateRequest, Generation, PolicyVersion, Tokenizer
from ale_engines.pool.replica import Replica
from ale_ray.actor_calls import ActorLost, ActorSilent, ask
from ale_ray.actor_lifecycle import end_actor, look_at, start_actor, take_messages
from ale_ray.engine_actor import EngineActor, EngineFacts, EngineSpec
from ale_ray.engine_calls import EngineCalls
from ale_ray.timer_coalescing import wait_for_tick

STATE_S = 2.0
"""Seconds between two looks at an engine's metrics."""
CLOSE_S = 15.0
CALL_S = 120.0
"""How long an engine may take to pause, sleep or wake."""


class RayReplica(Replica):
    """Starts and asks the actor of an engine.

    `options` are those of the actor, `receive` gets its messages, and `check_started` refuses an engine that cannot do
    on its node what the run needs."""

    def __init__(
        self,
        spec: EngineSpec,
        options: dict[str, Any],
        start_s: float,
        receive: Callable[[Any], None],
        check_started: Callable[[Any], None],
    ) -> None:
        self.spec = spec
        self.options, self._start_s, self._receive, self._check_started = options, start_s, receive, check_started
        self._numbers = count()
        self._model: Path | None = None
        self._version = 0
        self._metrics: dict[str, float] = {}
        self._requests = 0
        self._silence = ""
        """Why its actor was ended by force, if it was."""
        self._listening: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self.actor: Any = None
        self._calls = EngineCalls(None, spec.name)
        self.facts = EngineFacts(
            slots=1, max_context=0, transports=("folder",), node="", pid=0, capabilities=frozenset()
        )

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def slots(self) -> int:
        return self.facts.slots

    @property
    def place(self) -> str:
        return f"{self.facts.node[:8]} · {self.facts.devices}"

    @property
    def requests(self) -> int:
        """Rollout workers send theirs without the pool."""
        return self._requests

    @property
    def frees_memory(self) -> bool:
        return self.facts.frees_memory

    @property
    def capabilities(self) -> frozenset[str]:
        """Those of the engine on its node."""
        return self.facts.capabilities

    @property
    def transports(self) -> tuple[str, ...]:  # type: ignore[override]  # known once it has started
        """The transports of the engine that work between processes."""
        return self.facts.transports

    @property
    def max_context(self) -> int:
        return self.facts.max_context

    @property
    def version(self) -> int:
        return self._version

    def metrics(self) -> dict[str, float]:
        """Return the engine's metrics of the last look."""
        return self._metrics

    async def start(self) -> None:
        """Start the actor and the engine in it."""
        label = f"{self.name}/{next(self._numbers)}"  # an actor that dies keeps its name for a moment
        self.actor = actor = start_actor(EngineActor, label, self.options)
        self._calls = EngineCalls(actor, self.name)
        self._silence = ""
        self._listening = asyncio.create_task(self._listen(actor))
        self.facts = await self._ask(actor.start.remote(cloudpickle.dumps(self.spec)), self._start_s, "start")
        self._check_started(self)
        self._looking = asyncio.create_task(self._look(actor))

    async def close(self) -> None:
        """Close the engine and end the actor."""
        actor, self.actor = self.actor, None
        listening, self._listening = self._listening, None
        looking, self._looking = self._looking, None
        self._requests = 0
        if looking is not None:
            looking.cancel()
        await end_actor(self.name, actor, listening, CLOSE_S)

    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        self._model = folder
        self.facts = await self._ask(self.actor.load_model.remote(folder), None, "load the model")
        self._version = 0

    async def generate(self, request: GenerateRequest) -> Generation:
        return await self._calls.generate(request)

    def sampled_so_far(self, request: GenerateRequest, after: int = 0) -> Generation:
        return self._calls.sampled_so_far(request, after)

    async def load_weights(self, policy: PolicyVersion) -> None:
        await self._ask(self.actor.load_weights.remote(policy), None, "load weights")
        self._version = policy.version

    async def check(self) -> None:
        await self._call("check", CALL_S)

    async def interrupt(self) -> None:
        await self._call("interrupt", CALL_S)
        self._metrics, self._requests = await self._ask(self.actor.state.remote(), CALL_S, "say its state")

    async def restart(self) -> None:
        """End the actor and start another one. An engine that still can ends its server in order: what a server
        leaves when its actor is killed could be in the way of the next."""
        await self.close()
        await self.start()
        self.facts = await self._ask(self.actor.load_model.remote(self._model), None, "load the model")
        self._version = 0

    async def pause(self) -> None:
        await self._call("pause", CALL_S)

    async def resume(self) -> None:
        await self._call("resume", CALL_S)

    async def sleep(self) -> None:
        await self._call("sleep", CALL_S)

    async def wake(self) -> None:
        await self._call("wake", CALL_S)

    async def _call(self, method: str, limit_s: float) -> None:
        await self._ask(self.actor.call.remote(method), limit_s, method)

    async def _ask(self, reference: Any, limit_s: float | None, what: str) -> Any:
        try:
            return await ask(self.name, reference, limit_s)
        except TimeoutError:
            raise EngineError(f"{self.name} took more than {limit_s:g} s to {what}.") from None
        except ActorLost as error:
            raise EngineError(self._silence or str(error)) from error

    async def _listen(self, actor: Any) -> None:
        while self.actor is actor:  # the pool finds out if it has died; else it was out of reach for a moment
            with suppress(ActorLost):
                return await take_messages(self.name, actor, self._receive)
            await asyncio.sleep(STATE_S)

    async def _look(self, actor: Any) -> None:
        """Take the engine's metrics, and end an actor that has stopped for good: it may be loading, where nothing else
        checks it and a load may take as long as it likes."""
        while self.actor is actor and not self._silence:
            try:
                self._metrics, self._requests = await look_at(self.name, actor, actor.state.remote())
            except ActorSilent as error:
                self._silence = str(error)
            except ActorLost:
                pass  # the pool finds it; else it was out of reach for a moment
            await wait_for_tick(STATE_S)
