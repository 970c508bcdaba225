"""Calls of actors: their errors come back as they were raised, and an actor that has died is an error of its own.

Ray wraps what an actor raises into an exception of Ray's; errors of ALE are told apart by their classes. So an actor's
method returns `Failed` for an error, made by `answered`, and `ask` raises it again."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import cloudpickle  # type: ignore[import-untyped]

from ale.errors import AleError, PluginError
from ale.registry.validation import describe_error

P = ParamSpec("P")
T = TypeVar("T")

COLORS = re.compile(r"\x1b\[\d*m")
"""Ray's messages have some."""


class ActorLost(AleError):
    """The actor has died, or its node cannot be reached."""


class ActorSilent(ActorLost):
    """The actor had stopped for good, and was ended."""


MISSING = re.compile(r"No module named '[^']+'")
NODE = re.compile(r"\bip=([^\s,)]+)")


@dataclass(frozen=True, slots=True)
class Failed:
    """An error, pickled."""

    error: bytes


def answered(method: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T | Failed]]:
    """Have an actor's method return what it raises."""

    @functools.wraps(method)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T | Failed:
        try:
            return await method(*args, **kwargs)
        except AleError as error:
            return Failed(_pickle(error))
        except Exception as error:
            return Failed(_pickle(PluginError(f"An actor of the cluster failed: {describe_error(error)}.")))

    return call


def _pickle(error: AleError) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(error)
        cloudpickle.loads(data)  # some can be written, but not read again
        return data
    except Exception:
        plain = next(cls for cls in type(error).__mro__ if cls.__init__ is Exception.__init__)  # type: ignore[misc]
        data = cloudpickle.dumps(plain(str(error)))
        return data


async def ask(what: str, reference: Any, limit_s: float | None = None) -> Any:
    """Wait for an actor's answer. Raises what the actor raised, `ActorLost`, or `TimeoutError` after `limit_s`; `what`
    names the actor."""
    from ray.exceptions import RayError

    try:
        async with asyncio.timeout(limit_s):
            answer = await reference
    except RayError as error:
        raise _as_lost(what, error) from error
    if isinstance(answer, Failed):
        raise cloudpickle.loads(answer.error)
    return answer


def when_answered(what: str, reference: Any, take: Callable[[Any], None]) -> None:
    """Have the event loop call `take` with what an actor returns, or with the error: `ActorLost`, or another exception
    of Ray's. It costs less than a task that waits."""
    from ray.exceptions import RayError

    loop = asyncio.get_running_loop()

    def arrive(done: Any) -> None:  # in a thread of Ray's
        error = done.exception()
        answer = done.result() if error is None else _as_lost(what, error) if isinstance(error, RayError) else error
        with suppress(RuntimeError):  # the loop is closed: the run ends
            loop.call_soon_threadsafe(take, answer)

    reference.future().add_done_callback(arrive)


def _as_lost(what: str, error: Exception) -> ActorLost:
    from ray.exceptions import RayTaskError

    text = COLORS.sub("", str(error))
    if missing := MISSING.search(text):
        node = NODE.search(text)
        return ActorLost(
            f"{what} cannot start on the node {node[1] if node else '(unknown)'}: {missing[0]} there. Install the same "
            "packages in the Python of Ray on every node"
        )
    if isinstance(error, RayTaskError):  # it lives, but has a fault that no method of it may have
        return ActorLost(f"{what} failed: {_lines(error)[-1]}")
    return ActorLost(f"{what} has died, or its node cannot be reached: {_lines(error)[0]}")


def _lines(error: Exception) -> list[str]:
    lines = [line.strip()[:300] for line in COLORS.sub("", str(error)).splitlines() if line.strip()]
    return lines or [type(error).__name__]


async def cancel(task: asyncio.Task[Any] | None) -> None:
    """End a task, unless it has ended, and wait for it."""
    if task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task])


def enter_folder(folder: Path) -> None:
    """Make the run's working folder this process's, if this node has it: an actor begins where Ray was started."""
    with suppress(OSError):
        os.chdir(folder)


def take_interrupts() -> None:
    """Let SIGINT through to what this thread starts: Ray blocks it in its processes, and a program in a sandbox that
    inherits that could not be interrupted. Ctrl-C in a terminal does not reach a process group of its own."""
    with suppress(OSError):  # it leads a session
        os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
