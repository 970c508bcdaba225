"""What an actor raises arrives as it was raised."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from ale.errors import AleError, EngineError, PluginError, SandboxError, UncleanError
from ale_ray import actor_lifecycle as actors
from ale_ray.actor_calls import Failed, answered, ask
from ale_ray.actor_lifecycle import look_at


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


async def test_an_actor_that_answers_while_this_process_stands_still_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors, "SILENT_S", 0.05)

    async def arrive() -> str:
        await asyncio.sleep(0)
        time.sleep(0.2)  # noqa: ASYNC251 - it stands still
        for _ in range(5):  # an answer that is there still needs some turns of the event loop
            await asyncio.sleep(0)
        return "it moves"

    assert await look_at("an actor", None, arrive()) == "it moves"
