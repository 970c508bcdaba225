"""The life of an actor as the run sees it: it is started, its messages are taken, and it is ended in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from ale.errors import AleError
from ale.registry.validation import describe_error
from ale_ray.actor_calls import ActorLost, ActorSilent, ask, cancel
from ale_ray.actor_messages import ActorClosed, unpack

log = logging.getLogger("ale.cluster")
SILENT_S = 60.0
"""An actor that does not even answer a look for so long has stopped for good (its process is stopped, or its event loop
hangs). A busy machine may hold up a living one for some seconds."""
AGAIN_S = 1.0
"""How much longer it is waited for an answer that may be there: this process may have stood still itself."""
REST_S = 2.0
"""How long the last messages of an actor may take after it has closed."""


def start_actor(cls: type, name: str, options: Mapping[str, Any]) -> Any:
    """Have Ray start an actor, whose constructor takes nothing, and return it; `ask` says whether it runs. Raises
    `ActorLost`."""
    import ray
    from ray.exceptions import RayError

    try:
        return ray.remote(cls).options(name=name, **options).remote()
    except RayError as error:
        raise ActorLost(f"Ray does not start {name}: {describe_error(error)}.") from error


def share(value: Any) -> Any:
    """Return a reference to a value, to be passed to many actors: it is pickled once, and each node fetches it once."""
    import ray

    return ray.put(value)


async def look_at(who: str, actor: Any, reference: Any) -> Any:
    """Return the answer to a call that takes an actor no time. An actor that does not give it within `SILENT_S` is
    ended by force: so its other calls, which may take as long as they like (an episode, a load of weights), end as
    those of a dead one. Raises `ActorSilent` then, and `ActorLost`."""
    asking = asyncio.ensure_future(ask(who, reference))
    try:
        for limit_s in (SILENT_S, AGAIN_S):
            if not asking.done():
                await asyncio.wait([asking], timeout=limit_s)
        if asking.done():
            return asking.result()
    finally:
        asking.cancel()
    _kill(actor)
    raise ActorSilent(f"{who} did not answer for {SILENT_S:g} s, and was ended.")


async def take_messages(who: str, actor: Any, receive: Callable[[Any], None]) -> None:
    """Give an actor's messages to `receive` until it has closed. Raises `ActorLost`."""
    while not deliver(who, await ask(who, actor.messages.remote()), receive):
        pass


def deliver(who: str, messages: Iterable[Any], receive: Callable[[Any], None]) -> bool:
    """Give messages to `receive`; what it raises is logged, and the others still come. Returns whether the actor has
    closed, with its last message."""
    for message in messages:
        if isinstance(message, ActorClosed):
            return True
        try:
            receive(unpack(message))
        except Exception as error:
            log.warning("a message of %s is lost: %s", who, describe_error(error))
    return False


async def end_actor(who: str, actor: Any, listening: asyncio.Task[None] | None, limit_s: float | None) -> None:
    """Have an actor close within `limit_s` (None: do not ask it) and take its last messages; then end it."""
    try:
        if actor is not None and limit_s is not None:
            await _close(who, actor, listening, limit_s)
        await cancel(listening)
    finally:
        if actor is not None:
            _kill(actor)


async def _close(who: str, actor: Any, listening: asyncio.Task[None] | None, limit_s: float) -> None:
    try:
        await ask(who, actor.close.remote(), limit_s)
        if listening is not None:
            await asyncio.wait([listening], timeout=REST_S)
    except ActorLost:
        pass
    except TimeoutError:
        log.warning("%s did not close within %g s, and is ended by force", who, limit_s)
    except AleError as error:
        log.warning("%s did not close well: %s", who, error)


def _kill(actor: Any) -> None:
    import ray
    from ray.exceptions import RayError

    if ray.is_initialized():  # else its actors have ended, and a call would start another Ray
        with suppress(RayError):
            ray.kill(actor, no_restart=True)
