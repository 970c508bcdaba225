"""Calls to another server's model are answered from a recording, and what is not in it is forwarded or refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest
from official_clients import CHAT_TOOL
from served_upstream import GO, World, served
from upstreams import CALL

from ale_endpoint.forwarding import Forwarding
from ale_endpoint.recording import Recording, read_recording
from ale_endpoint.replay import Replay


async def test_an_agent_meets_the_same_world_in_a_replay(world: World, tmp_path: Path) -> None:
    async def agent(origin: str, key: str, task: str) -> list[str]:
        chat = await world.chat(key, origin)
        messages: list[Any] = [{"role": "user", "content": task}]
        said = []
        for _ in range(2):
            made = (await chat.chat.completions.create(model="m", messages=messages, tools=[CHAT_TOOL])).choices[0]
            said.append(made.message.content or "")
            messages.append(made.message.model_dump())
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": "out"} for call in made.message.tool_calls or []
            ]
        return said

    world.engine.texts = [f"one{CALL}", "end of one", f"two{CALL}", "end of two"]
    first, second = await agent(world.origin, "a", "first"), await agent(world.origin, "b", "second")
    assert (first, second) == (["one", "end of one"], ["two", "end of two"])
    with Recording(tmp_path / "again.jsonl") as again:
        replayed = Forwarding(None, Replay(world.calls()), again)
        async with served(replayed) as origin:
            found = await asyncio.gather(*(agent(origin, key, task) for key, task in (("x", "second"), ("y", "first"))))
            assert found == [second, first], "whatever order the requests come in"
            chat = await world.chat("z", origin)
            with pytest.raises(openai.NotFoundError, match="not in the recording; the nearest is call 0") as told:
                await chat.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "frist"}], tools=[CHAT_TOOL]
                )
        assert told.value.code == "not_recorded"
    assert len(Replay(read_recording(tmp_path / "again.jsonl"))) == 4, "a replay is recorded like anything else"


async def test_what_is_not_in_the_recording_is_forwarded(world: World) -> None:
    world.engine.texts = ["old", "new"]
    chat = await world.chat()
    await chat.chat.completions.create(model="m", messages=GO)
    replay = Replay(world.calls())
    both = Forwarding(world.forwarding._source, replay, world.recording, record_replayed=False)
    async with served(both) as origin:
        chat = await world.chat(origin=origin)
        said = [
            (await chat.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])).choices[0]
            for text in ("go", "else")
        ]
    assert [choice.message.content for choice in said] == ["old", "new"]
    assert both.counts == {"replayed": 1, "answered": 1}
    assert [c.request.messages[0].content for c in world.calls()] == ["go", "else"]
