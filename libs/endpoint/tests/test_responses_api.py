"""The Responses API of the endpoint, as the official client sees it."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from official_clients import LONG, PARAMETERS, RESPONSES_TOOL, TWO, exact
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


def made_call(name: str, **arguments: str) -> str:
    """A reply that calls a tool."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


LIST: Any = {"type": "function", "name": "list", "parameters": PARAMETERS, "strict": False}
PATCH: Any = {"type": "custom", "name": "patch", "format": {"type": "text"}}


@pytest.mark.parametrize("stream", [False, True])
async def test_tools_in_namespaces_are_called_by_both_names(
    chat: openai.AsyncOpenAI, session: ServedSession, engine: ScriptedEngine, stream: bool
) -> None:
    tools: Any = [
        {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [LIST, PATCH]},
        {"type": "namespace", "name": "mcp__files__", "description": "Files.", "tools": [LIST]},
        LIST,
    ]
    calls = [("crm__list", {}), ("mcp__files__list", {}), ("list", {}), ("crm__patch", {"input": "a"})]
    engine.texts = ["".join(made_call(name, **arguments) for name, arguments in calls), "done"]
    given: list[Any] = [{"role": "user", "content": "go"}]
    if stream:
        async with chat.responses.stream(model="m", input=given, tools=tools) as events:
            made: Any = await events.get_final_response()
    else:
        made = await chat.responses.create(model="m", input=given, tools=tools)
    assert [(item.type, item.namespace, item.name) for item in made.output] == [
        ("function_call", "crm", "list"),
        ("function_call", "mcp__files__", "list"),
        ("function_call", None, "list"),
        ("custom_tool_call", "crm", "patch"),
    ]
    given += [item.model_dump(exclude_none=True) for item in made.output]
    given += [{"type": f"{item.type}_output", "call_id": item.call_id, "output": "out"} for item in made.output]
    await chat.responses.create(model="m", input=given, tools=tools)
    (line,) = session.recorder.sequences
    assert [tool.name for tool in line.tools] == ["crm__list", "crm__patch", "mcp__files__list", "list"]
    assert [chunk.error for chunk in session.recorder.chunks] == [None, None]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_search_for_tools_is_the_agents_and_what_it_finds_can_be_called(
    chat: openai.AsyncOpenAI, session: ServedSession, engine: ScriptedEngine, stream: bool
) -> None:
    tools: Any = [{"type": "tool_search", "execution": "client", "description": "Finds.", "parameters": PARAMETERS}]
    engine.texts = [made_call("tool_search", command="crm"), made_call("crm__list")]
    given: list[Any] = [{"role": "user", "content": "go"}]
    if stream:
        async with chat.responses.stream(model="m", input=given, tools=tools) as events:
            made: Any = await events.get_final_response()
    else:
        made = await chat.responses.create(model="m", input=given, tools=tools)
    (search,) = made.output
    assert (search.type, search.execution, search.arguments) == ("tool_search_call", "client", {"command": "crm"})
    found = {
        "type": "namespace",
        "name": "crm",
        "description": "Customers.",
        "tools": [{**LIST, "defer_loading": True}],
    }
    output = {"type": "tool_search_output", "call_id": search.call_id, "execution": "client", "tools": [found]}
    given += [search.model_dump(exclude_none=True), output]
    (call,) = (await chat.responses.create(model="m", input=given, tools=tools)).output
    assert call.type == "function_call"
    assert (call.namespace, call.name) == ("crm", "list")
    line = session.recorder.sequences[-1]
    assert [tool.name for tool in line.tools] == ["crm__list", "tool_search"]
    assert "Tools that can be called now: crm__list." in [message.content for message in line.messages]
    assert [chunk.error for chunk in session.recorder.chunks] == [None, None]


async def test_tools_that_a_server_would_search_are_all_there_at_once(
    chat: openai.AsyncOpenAI, session: ServedSession, engine: ScriptedEngine
) -> None:
    engine.texts = ["done"]
    tools: Any = [{**LIST, "defer_loading": True}, {"type": "tool_search"}, {"type": "web_search"}]
    await chat.responses.create(model="m", input="go", tools=tools)
    assert [tool.name for tool in session.recorder.sequences[0].tools] == ["list"]
