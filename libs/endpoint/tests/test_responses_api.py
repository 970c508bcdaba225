"""The Responses API of the endpoint, as the official client sees it."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from official_clients import LONG, RESPONSES_TOOL, TWO, exact
from served_sessions import ServedSession

from ale_testing.fake_engines import ScriptedEngine


async def test_responses_with_tools_is_one_line_of_tokens(
    chat: openai.AsyncOpenAI, session: ServedSession, engine: ScriptedEngine
) -> None:
    patch: Any = {"type": "custom", "name": "apply_patch", "description": "Patches.", "format": {"type": "text"}}
    engine.texts = [TWO, '<tool_call>\n{"name": "apply_patch", "arguments": {"input": "a\\nb"}}\n</tool_call>', "done"]
    given: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "go"}]}]
    tools = [RESPONSES_TOOL, patch, {"type": "web_search"}]
    for turn in range(3):
        made = await chat.responses.create(
            model="m",
            instructions="Be brief.",
            input=given,
            tools=tools,
            store=False,
            include=["reasoning.encrypted_content"],
        )
        assert made.status == "completed"
        given += [item.model_dump() for item in made.output]
        for item in made.output:
            if item.type == "function_call":
                given.append({"type": "function_call_output", "call_id": item.call_id, "output": "out"})
            elif item.type == "custom_tool_call":
                assert item.input == "a\nb"
                given.append({"type": "custom_tool_call_output", "call_id": item.call_id, "output": "ok"})
        assert [item.type for item in made.output] == [
            ["message", "function_call", "function_call"],
            ["custom_tool_call"],
            ["message"],
        ][turn]
    assert made.output_text == "done"
    exact(session, engine)


@pytest.mark.parametrize("text", [LONG, TWO, ""])
async def test_a_stream_of_responses_says_what_the_whole_says(
    chat: openai.AsyncOpenAI, engine: ScriptedEngine, text: str
) -> None:
    engine.texts = [text, text]
    whole = await chat.responses.create(model="m", input="go", tools=[RESPONSES_TOOL])
    async with chat.responses.stream(model="m", input="go", tools=[RESPONSES_TOOL]) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert final.output_text == whole.output_text
    names = [[(i.name, i.arguments) for i in made.output if i.type == "function_call"] for made in (final, whole)]
    assert names[0] == names[1]


async def test_a_cut_response_is_incomplete_and_what_is_stored_nowhere_is_refused(
    chat: openai.AsyncOpenAI, engine: ScriptedEngine
) -> None:
    engine.texts = ["much longer"]
    made = await chat.responses.create(model="m", input="go", max_output_tokens=4)
    assert (made.status, made.output_text) == ("incomplete", "much")
    assert made.incomplete_details is not None
    assert made.incomplete_details.reason == "max_output_tokens"
    with pytest.raises(openai.BadRequestError, match="nothing is stored here"):
        await chat.responses.create(model="m", input="go", previous_response_id="resp_1")
