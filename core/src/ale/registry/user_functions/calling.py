"""Calls a function of the user's: with the arguments that it names, off the event loop, within a time limit.

A plain function runs in a thread of its own, a daemon: one that never ends must not keep the run from ending. When it
is out of time, `SystemExit` is raised in that thread, which ends everything but a long call into C.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from ale.errors import AleError, ConfigError
from ale.registry.foreign_code import catch_all, run_apart
from ale.registry.user_files import line_in
from ale.registry.user_functions.loading import UserFunction
from ale.registry.validation import describe_error, nearest_hint

Outcome = tuple[Any, BaseException | None]
"""The result of a call, and what it raised."""


class FunctionFailed(Exception):
    """A function raised an exception or ran out of time. The message is a sentence for the user that names function and
    line; `reason` is the part without the place, for a model."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


def pick_arguments(function: UserFunction, offered: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a function's signature names, and everything if it has `**kwargs`.

    Raises `ConfigError` if a parameter without a default is not among what is offered.
    """
    for name, parameter in function.parameters.items():
        if name not in offered and parameter.default is parameter.empty:
            raise ConfigError(
                f"{function.where} takes '{name}', which nothing provides.{nearest_hint(name, offered)} There are: "
                f"{', '.join(sorted(offered))}. Rename the parameter, or give it a default."
            )
    return {name: value for name, value in offered.items() if function.takes_all or function.names(name)}


async def call_function(function: UserFunction, arguments: Mapping[str, Any], timeout_s: float) -> Any:
    """Call a function, plain or async, and return what it returns.

    Raises `FunctionFailed`; errors of ALE, such as the `SandboxError` of a lost sandbox, pass unchanged.
    """
    timer = asyncio.timeout(timeout_s)
    with catch_all() as caught:
        async with timer:
            if function.is_async:
                return await run_apart(function.function(**arguments))
            result, raised = await _call_in_thread(lambda: function.function(**arguments))
            if raised is None:
                return await run_apart(result) if inspect.isawaitable(result) else result
            caught.append(raised)
    (error,) = caught
    if isinstance(error, AleError):
        raise error
    if isinstance(error, TimeoutError) and timer.expired():
        reason = f"it did not end within {timeout_s:g} s"
        raise FunctionFailed(f"{function.where} was stopped: {reason}.", reason) from None
    reason = describe_error(error)
    code = inspect.unwrap(function.function).__code__ if inspect.isfunction(function.function) else None
    line = line_in(error, code.co_filename) if code is not None else ""
    raise FunctionFailed(f"{function.where} raised {reason}{line}.", reason) from error


def _call_in_thread(call: Callable[[], Any]) -> Awaitable[Outcome]:
    """Run a call in a daemon thread, and return its result and what it raised; when its waiter is cancelled, the thread
    is interrupted. No Ctrl-C reaches such a thread: it may raise `KeyboardInterrupt` like anything else."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Outcome] = loop.create_future()

    def work() -> None:
        try:
            outcome: Outcome = (call(), None)
        except BaseException as error:
            outcome = (None, error)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_finish, outcome)

    def _finish(outcome: Outcome) -> None:
        if not done.done():
            done.set_result(outcome)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True, name="user function")
    thread.start()

    async def wait() -> Outcome:
        try:
            return await done
        except asyncio.CancelledError:
            assert thread.ident is not None
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
            raise

    return wait()
