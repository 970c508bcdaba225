"""A model's thoughts reach the client in each API's own shape, and go back into the same line of tokens."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest
from official_clients import ANTHROPIC_TOOL, CHAT_TOOL, LONG, RESPONSES_TOOL, exact
from served_sessions import ServedSession

from ale_testing.fake_engines import CALL, ScriptedEngine

THOUGHT = f"<think>\nThe user wants files. {LONG}\n</think>\n\nI look.{CALL}"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("echoed", [False, True])
async def test_thoughts_in_chat_are_reasoning_content(
    chat: openai.AsyncOpenAI, session: ServedSession, engine: ScriptedEngine, stream: bool, echoed: bool
) -> None:
    engine.texts = [THOUGHT, "done"]
    messages: list[Any] = [{"role": "user", "content": "go"}]
    made: Any = await chat.chat.completions.create(model="m", messages=messages, tools=[CHAT_TOOL], stream=stream)
    said = engine.texts and session.recorder.sequences[0].messages[-1].to_openai()
    if stream:
        deltas = [chunk.choices[0].delta async for chunk in made]
        thought = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
        content = "".join(delta.content or "" for delta in deltas)
    else:
        thought, content = made.choices[0].message.reasoning_content, made.choices[0].message.content
    assert (thought, content) == (f"The user wants files. {LONG}".strip(), "I look.")
    assert said["reasoning_content"] == thought
    if not echoed:
        del said["reasoning_content"]
    messages += [said, {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "out"}]
    await chat.chat.completions.create(model="m", messages=messages, tools=[CHAT_TOOL])
    exact(session, engine)
    assert session.recorder.changed_echoes == (not echoed), (
        "thoughts that the agent drops are seen, and stay in the line"
    )


async def test_thoughts_in_responses_are_items(
    chat: openai.AsyncOpenAI, session: ServedSession, engine: ScriptedEngine
) -> None:
    engine.texts = [THOUGHT, THOUGHT, "done"]
    given: list[Any] = [{"role": "user", "content": "go"}]
    for stream in (False, True):
        if stream:
            async with chat.responses.stream(model="m", input=given, tools=[RESPONSES_TOOL]) as events:
                kinds = [event.type async for event in events]
                made: Any = await events.get_final_response()
            assert "response.reasoning_text.delta" in kinds
        else:
            made = await chat.responses.create(model="m", input=given, tools=[RESPONSES_TOOL])
        assert [item.type for item in made.output] == ["reasoning", "message", "function_call"]
        assert made.output[0].content[0].text.startswith("The user wants files.")
        given += [item.model_dump() for item in made.output]
        given.append({"type": "function_call_output", "call_id": made.output[2].call_id, "output": "out"})
    await chat.responses.create(model="m", input=given, tools=[RESPONSES_TOOL])
    exact(session, engine)
    assert session.recorder.changed_echoes == 0


async def test_thoughts_in_messages_are_blocks(
    claude: anthropic.AsyncAnthropic, session: ServedSession, engine: ScriptedEngine
) -> None:
    engine.texts = [THOUGHT, THOUGHT, "done"]
    messages: list[Any] = [{"role": "user", "content": "go"}]
    ask: dict[str, Any] = {"model": "m", "max_tokens": 999, "tools": [ANTHROPIC_TOOL]}
    for stream in (False, True):
        if stream:
            async with claude.messages.stream(messages=messages, **ask) as events:
                made: Any = await events.get_final_message()
        else:
            made = await claude.messages.create(messages=messages, **ask)
        assert [block.type for block in made.content] == ["thinking", "text", "tool_use"]
        assert made.content[0].thinking.startswith("The user wants files.")
        messages.append(
            {
                "role": "assistant",
                "content": [block.model_dump(exclude={"parsed_output"}) for block in made.content],
            }
        )
        result = {"type": "tool_result", "tool_use_id": made.content[2].id, "content": "out"}
        messages.append({"role": "user", "content": [result]})
    await claude.messages.create(messages=messages, **ask)
    exact(session, engine)
    assert session.recorder.changed_echoes == 0
