"""The generations that one process has at an engine's actor, and what has been sampled for them so far.

The process asks the actor every second what it has sampled for them, and more often while a reply is streamed. If the
actor or its node dies, a generation goes on elsewhere from there: only what was sampled since the last answer is lost.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import suppress
from typing import Any

from ale.errors import AleError
from ale.specs.engine import GenerateRequest, Generation
from ale_engines.pool.continuation import NOTHING
from ale_engines.pool.replica import Interrupted
from ale_engines.server.sampled_tokens import Sampled
from ale_ray.actor_calls import ActorLost, ask
from ale_ray.engine_actor import BrokenOff

FOLLOW_S = 1.0
"""Seconds between two questions, each of which costs both processes about a millisecond."""
STREAM_S = 0.1
"""Seconds between two questions while somebody reads what is sampled."""


class EngineCalls:
    """Sends generations to an actor and follows them. `name` names the engine in messages."""

    def __init__(self, actor: Any, name: str) -> None:
        self.actor, self._name = actor, name
        self._sampled: dict[str, Sampled] = {}
        """What is known of each generation that runs."""
        self._by_request: dict[int, Sampled] = {}
        """The same by the id of the request."""
        self._read_at = -FOLLOW_S
        """When somebody last read what is sampled."""
        self._following: asyncio.Task[None] | None = None

    async def generate(self, request: GenerateRequest) -> Generation:
        """Have the actor sample. Raises `Interrupted` if it cannot finish, also because it has died. A cancelled call
        is ended there."""
        call = uuid.uuid4().hex
        sampled = self._sampled[call] = self._by_request[id(request)] = Sampled(self._name)
        if self._following is None:
            self._following = asyncio.get_running_loop().create_task(self._follow())
        try:
            answer = await ask(self._name, self.actor.generate.remote(call, request))
        except ActorLost as error:
            self.actor.abort.remote(call)  # it may live, and only its answer be lost
            raise Interrupted(str(error), sampled.as_generation()) from error
        except asyncio.CancelledError:
            self.actor.abort.remote(call)
            raise
        finally:
            del self._sampled[call]
            self._by_request.pop(id(request), None)
            if not self._sampled and self._following is not None:
                self._following.cancel()
                self._following = None
        if isinstance(answer, BrokenOff):
            raise Interrupted(answer.message, answer.partial)
        if answer is None:
            raise Interrupted(f"{self._name} ended a generation because it was asked to.", NOTHING)
        generation: Generation = answer
        return generation

    def sampled_so_far(self, request: GenerateRequest, after: int = 0) -> Generation:
        """Return what is known to be sampled, beyond `after` tokens, for a request that runs: the object that
        `generate` got."""
        self._read_at = time.monotonic()
        sampled = self._by_request.get(id(request))
        return NOTHING if sampled is None else sampled.as_generation(after=after)

    async def _follow(self) -> None:
        """Ask what has been sampled, until this is cancelled: one question at a time, so that no part comes twice."""
        while True:
            for _ in range(round(FOLLOW_S / STREAM_S)):
                await asyncio.sleep(STREAM_S)
                if time.monotonic() - self._read_at < FOLLOW_S:
                    break
            known = {call: len(sampled) for call, sampled in self._sampled.items()}
            with suppress(AleError):  # what has become of the actor is known from the generations
                for call, part in (await ask(self._name, self.actor.sampled.remote(known))).items():
                    if (sampled := self._sampled.get(call)) is not None:
                        sampled.add(part.token_ids, part.logprobs, part.versions)
