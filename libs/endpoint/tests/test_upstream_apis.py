"""Another server's model behind the endpoint's APIs, as the official clients see it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from official_clients import ANTHROPIC_TOOL, CHAT_TOOL, RESPONSES_TOOL
from served_upstream import GO, World, served
from upstreams import CALL, Faulty, fails, hangs, says

from ale_endpoint.forwarding import Forwarding
from ale_endpoint.recording import Recording, read_recording
from ale_endpoint.upstream import Route, Upstream

KEY = "sk-upstream-0123456789"


async def test_chat_completions_with_tools_and_streams(world: World) -> None:
    chat = await world.chat()
    world.engine.texts = [f"I look.{CALL}", "done", "streamed, and long enough for more than one piece of it to go out"]
    first = await chat.chat.completions.create(model="big", messages=GO, tools=[CHAT_TOOL])
    said = first.choices[0].message
    assert (said.content, first.choices[0].finish_reason, first.model) == ("I look.", "tool_calls", "big")
    assert first.usage is not None
    assert first.usage.prompt_tokens > 0
    calls: list[Any] = list(said.tool_calls or [])
    messages = [*GO, said.model_dump(), {"role": "tool", "tool_call_id": calls[0].id, "content": "out"}]
    second = await chat.chat.completions.create(model="big", messages=messages, tools=[CHAT_TOOL])
    assert second.choices[0].message.content == "done"
    async with chat.chat.completions.stream(model="big", messages=GO) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == "streamed, and long enough for more than one piece of it to go out"
    recorded = world.calls()
    assert [c.number for c in recorded] == [0, 1, 2]
    assert len({c.session for c in recorded}) == 1
    assert [m.role for m in recorded[1].request.messages] == ["user", "assistant", "tool"]
    assert recorded[0].answer is not None
    assert recorded[0].answer.usage["total_tokens"] > 0


async def test_responses_and_messages_reach_a_chat_completions_server(world: World) -> None:
    chat, claude = await world.chat(), await world.claude()
    world.engine.texts = [f"I look.{CALL}", f"I look.{CALL}", "done", "one", "two"]
    made = await chat.responses.create(model="big", input="go", instructions="Act.", tools=[RESPONSES_TOOL])
    assert [item.type for item in made.output] == ["message", "function_call"]
    message = await claude.messages.create(
        model="big", max_tokens=99, system="Act.", messages=GO, tools=[ANTHROPIC_TOOL]
    )
    assert message.stop_reason == "tool_use"
    used: Any = message.content[1]
    assert (used.name, used.input) == ("shell", {"command": "ls"})
    answers: Any = [{"type": "tool_result", "tool_use_id": used.id, "content": "out"}]
    history: Any = [*GO, {"role": "assistant", "content": message.content}, {"role": "user", "content": answers}]
    last = await claude.messages.create(
        model="big", max_tokens=99, system="Act.", messages=history, tools=[ANTHROPIC_TOOL]
    )
    assert last.stop_reason == "end_turn"
    async with claude.messages.stream(model="big", max_tokens=99, messages=GO) as stream:
        assert await stream.get_final_text() == "one"
    async with chat.responses.stream(model="big", input="go") as responses:
        assert (await responses.get_final_response()).output_text == "two"
    counted = await claude.messages.count_tokens(model="big", messages=GO)
    assert 5 < counted.input_tokens < 50
    assert [m.id async for m in chat.models.list()] == ["big"]
    assert [m.id async for m in claude.models.list()] == ["big"]
    assert len({c.session for c in world.calls()}) == 2, "each key is a session of its own"


async def test_faults_upstream_are_errors_that_clients_know(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        faulty = await stack.enter_async_context(Faulty().up())
        upstream = await stack.enter_async_context(
            Upstream([Route(faulty.url, key=KEY, key_from="K")], attempts=2, first_wait_s=0.01)
        )
        recording = stack.enter_context(Recording(tmp_path / "r.jsonl", upstream.redact))
        world = World(stack, tmp_path)
        world.origin = await stack.enter_async_context(served(Forwarding(upstream, recording=recording)))
        chat, claude = await world.chat(), await world.claude()
        faulty.script = [fails(500, f"boom {KEY}")] * 2
        with pytest.raises(openai.InternalServerError, match="boom") as broken:
            await chat.chat.completions.create(model="m", messages=GO)
        assert broken.value.status_code == 503
        faulty.script = [fails(401, f"bad key {KEY}")]
        with pytest.raises(openai.InternalServerError, match="refuses the key from K"):
            await chat.chat.completions.create(model="m", messages=GO)
        faulty.script = [fails(404, "no model m", "model_not_found")]
        with pytest.raises(openai.NotFoundError, match="no model m"):
            await chat.chat.completions.create(model="m", messages=GO)
        faulty.script = [fails(400, "x", "context_length_exceeded")]
        with pytest.raises(anthropic.BadRequestError, match="no room"):
            await claude.messages.create(model="m", max_tokens=9, messages=GO)
        faulty.script = [says(f"Your key is {KEY}.")]
        await chat.chat.completions.create(model="m", messages=GO)
        recorded = list(read_recording(tmp_path / "r.jsonl"))
    assert [c.error is None for c in recorded] == [False, False, False, False, True]
    assert KEY not in (tmp_path / "r.jsonl").read_text()
    assert KEY not in str(broken.value)


async def test_a_call_that_its_agent_gave_up_ends_upstream_and_is_not_recorded(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        faulty = await stack.enter_async_context(Faulty().up())
        ended = asyncio.Event()

        async def waits(request: Any) -> Any:
            while (await request.receive())["type"] != "http.disconnect":
                continue
            ended.set()
            return await says()(request)

        faulty.script = [waits]
        upstream = await stack.enter_async_context(Upstream([Route(faulty.url)]))
        recording = stack.enter_context(Recording(tmp_path / "r.jsonl"))
        origin = await stack.enter_async_context(served(Forwarding(upstream, recording=recording)))
        async with asyncio.timeout(60), httpx.AsyncClient(trust_env=False, timeout=None) as plain:
            asking = asyncio.create_task(plain.post(f"{origin}/v1/chat/completions", json={"messages": GO}))
            await faulty.asked.wait()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await ended.wait()
        assert recording.lines == 0


async def test_a_stream_that_waits_long_is_kept_alive_and_its_failure_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ale_endpoint.http_app.PATIENCE_S", 0.1)
    async with AsyncExitStack() as stack:
        faulty = await stack.enter_async_context(Faulty().up())
        faulty.script = [hangs]
        upstream = await stack.enter_async_context(Upstream([Route(faulty.url)], timeout_s=0.5, attempts=1))
        origin = await stack.enter_async_context(served(Forwarding(upstream)))
        world = World(stack, tmp_path)
        chat = await world.chat(origin=origin)
        with pytest.raises(openai.APIError, match=r"did not answer within 0\.5 s"):
            async with chat.chat.completions.stream(model="m", messages=GO) as stream:
                await stream.get_final_completion()
