"""What code of others raises is an error like any other, unless it is Ctrl-C or a genuine cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ale.errors import PluginError, SandboxError
from ale.registry.foreign_code import no_silent_end, run_apart
from ale.registry.validation import as_plugin_error, read_all


class OwnBase(BaseException):
    """As libraries have them to get past `except Exception`."""


STRAY = [asyncio.CancelledError(), SystemExit(3), GeneratorExit(), OwnBase("mine"), BaseExceptionGroup("", [OwnBase()])]


async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


@pytest.mark.parametrize("error", STRAY, ids=lambda error: type(error).__name__)
async def test_what_ends_a_process_or_a_task_is_an_error_of_the_plugin(error: BaseException) -> None:
    async def raises() -> None:
        raise error

    for call in (raises, lambda: run_apart(raises())):
        with pytest.raises(PluginError, match=f"^It crashed: {type(error).__name__}"), as_plugin_error("It crashed"):
            await call()


async def test_a_coroutine_that_cancels_its_own_task_cancels_nobody_else() -> None:
    with pytest.raises(PluginError, match="It crashed: "), as_plugin_error("It crashed"):
        await run_apart(cancels_itself())
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_errors_of_ale_and_ctrl_c_pass() -> None:
    for error in (SandboxError("gone"), KeyboardInterrupt()):
        with pytest.raises(type(error)), as_plugin_error("It crashed"):
            raise error


async def swallows(began: asyncio.Event) -> str:
    began.set()
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        return "swallowed"
    return "slept"


async def breaks(began: asyncio.Event) -> str:
    began.set()
    try:
        await asyncio.sleep(60)
    finally:
        raise ValueError("in the clean-up")


@pytest.mark.parametrize("work", [swallows, breaks])
async def test_a_genuine_cancellation_cancels_whatever_the_code_does_with_it(
    work: Callable[[asyncio.Event], Awaitable[str]],
) -> None:
    async def call(began: asyncio.Event) -> None:
        with as_plugin_error("It crashed"):
            await run_apart(work(began))

    began = asyncio.Event()
    task = asyncio.create_task(call(began))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_a_time_limit_around_it_is_a_time_out() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await run_apart(swallows(asyncio.Event()))


async def test_a_part_that_a_task_group_would_take_for_a_good_end_ends_it_with_a_sentence() -> None:
    async def part() -> None:
        with no_silent_end("The evaluation"):
            raise asyncio.CancelledError

    async def whole() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(part())
            group.create_task(asyncio.sleep(60))

    with pytest.raises(ExceptionGroup) as caught:
        await whole()
    assert caught.group_contains(PluginError, match="The evaluation was ended by CancelledError")


def test_an_iterator_is_guarded_at_each_step_and_may_be_left() -> None:
    def numbers() -> object:
        yield 1
        raise SystemExit(3)

    read = read_all("It crashed", numbers)  # type: ignore[arg-type]
    assert next(read) == 1
    with pytest.raises(PluginError, match="It crashed: SystemExit: 3"):
        next(read)
    left = read_all("It crashed", numbers)  # type: ignore[arg-type]
    next(left)
    left.close()  # type: ignore[attr-defined]
