"""What an actor raises arrives as it was raised."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ale.errors import AleError, EngineError, PluginError, SandboxError, UncleanError
from ale_ray.calls import Failed, answered, ask


@answered
async def fail(error: Exception) -> int:
    raise error


async def reply(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("raised", "arrives"),
    [
        (EngineError("no room"), EngineError),
        (UncleanError("files are left", "files"), SandboxError),
        (ValueError("odd"), PluginError),
    ],
)
async def test_an_error_comes_back_by_its_class(raised: Exception, arrives: type[AleError]) -> None:
    answer = await fail(raised)
    assert isinstance(answer, Failed)
    with pytest.raises(arrives, match=str(raised)):
        await ask("an actor", reply(answer))


async def test_an_answer_that_takes_too_long_is_a_timeout() -> None:
    with pytest.raises(TimeoutError):
        await ask("an actor", asyncio.sleep(5), 0.01)
