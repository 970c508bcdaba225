"""Sends a generation to one of several replicas, and the rest of it to another one if that breaks it off.

The pool dispatches to its members (`member.py`). Another process may dispatch to the same replicas, with an `Admission`
and targets of its own. Only the pool checks replicas and starts them again; the other process reports to it which of
them broke a generation off.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass

from ale.errors import EngineError
from ale.specs.engine import GenerateRequest, Generation
from ale_engines.pool.admission import Admission
from ale_engines.pool.continuation import NOTHING, finish_if_complete, join_parts, request_rest
from ale_engines.pool.replica import Interrupted
from ale_engines.pool.routing import Target

INTERRUPTIONS = 4
"""A generation that was broken off so many times fails: it may be what ends the replicas."""


class EngineTarget(Target, ABC):
    """A replica to which generations are sent."""

    @property
    @abstractmethod
    def max_context(self) -> int:
        """The maximum number of tokens (prompt and response) of one request."""

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether a request that got a slot may be sent now; a target that serves is ready."""

    @property
    @abstractmethod
    def leaving(self) -> bool:
        """Whether it leaves service, so that a generation that it breaks off is no sign of a fault."""

    @abstractmethod
    async def generate(self, request: GenerateRequest) -> Generation:
        pass

    def sampled_so_far(self, request: GenerateRequest, after: int) -> Generation:
        """Return what it has sampled, beyond `after` tokens, for a request that it has; empty if it does not know."""
        return NOTHING

    @abstractmethod
    def finish(self) -> None:
        """Record that it finished a generation."""

    @abstractmethod
    def broke_off(self) -> None:
        """Record that it broke a generation off by a fault of its own, and have it checked."""


@dataclass(slots=True)
class Progress:
    """How far a request is: what was sampled before, and the rest with the target that samples it."""

    done: Generation
    rest: GenerateRequest
    target: EngineTarget

    def sampled_so_far(self, after: int) -> Generation:
        """Return what has been sampled, beyond `after` tokens."""
        before = len(self.done.token_ids)
        whole = join_parts(self.done, self.target.sampled_so_far(self.rest, max(0, after - before)))
        at = min(after, before)
        return Generation(whole.token_ids[at:], whole.logprobs[at:], whole.versions[at:], whole.finish_reason)


async def dispatch(
    admission: Admission,
    request: GenerateRequest,
    counts: Counter[str],
    running: dict[int, Progress] | None = None,
) -> Generation:
    """Sample for a request at the targets of `admission`, which all are `EngineTarget`.

    What a target breaks off goes on elsewhere, from the prompt and what has been sampled; no token of it is sampled
    by older weights than those before. `counts["interruptions"]` counts how often that happens. `running` has, by the
    identity of the request, how far it is. Raises `EngineError` if no target will ever serve the request, or if it was
    broken off too often."""
    number, done, faults = admission.take_number(), NOTHING, 0
    while True:
        target = await admission.enter(number, request.session, max(done.versions, default=0))
        assert isinstance(target, EngineTarget)
        try:
            if not target.ready:
                continue  # its state changed after it was chosen
            rest = request_rest(request, done)
            if running is not None:
                running[id(request)] = Progress(done, rest, target)
            further = await target.generate(rest)
            target.finish()
            return join_parts(done, further)
        except Interrupted as error:
            done = join_parts(done, error.partial)
            counts["interruptions"] += 1
            if not target.leaving:
                faults += 1
                target.broke_off()
            if (complete := finish_if_complete(request, done, target.max_context)) is not None:
                return complete
            if faults == INTERRUPTIONS:
                raise EngineError(f"A generation was broken off {faults} times, the last time: {error}") from error
        finally:
            if running is not None:
                running.pop(id(request), None)
            admission.leave(target)
