"""Messages and tools are read in OpenAI's form and in what TRL and Arrow make of it; a wrong one is named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ale.messages import Message, ToolCall, ToolSpec
from ale_data.chat_rows import read_messages, read_tools

USER = {"role": "user", "content": "Add 1 and 2."}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA}}


def test_calls_are_read_in_openais_form() -> None:
    call = {"id": "c7", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    said = {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"}
    read = read_messages([USER, said, {"role": "tool", "tool_call_id": "c7", "content": "3"}])
    assert read == (
        Message("user", "Add 1 and 2."),
        Message("assistant", "", (ToolCall("c7", "add", '{"a": 1}'),), reasoning="hm"),
        Message("tool", "3", tool_call_id="c7"),
    )
    assert read_messages([message.to_openai() for message in read]) == read


def test_arguments_as_objects_and_missing_ids_are_filled_in() -> None:
    calls = [{"function": {"name": "add", "arguments": {"a": n}}} for n in (1, 2)]
    answers = [{"role": "tool", "name": "add", "content": text} for text in ("one", "two")]
    _, said, one, two = read_messages([USER, {"role": "assistant", "content": "", "tool_calls": calls}, *answers])
    assert [call.arguments for call in said.tool_calls] == ['{"a": 1}', '{"a": 2}']
    assert [one.tool_call_id, two.tool_call_id] == [call.id for call in said.tool_calls]


def test_parts_of_text_are_joined_and_json_text_is_a_list() -> None:
    parts = [{"type": "text", "text": "Add "}, {"type": "text", "text": "1."}]
    expected = (Message("system", "Be brief."), Message("user", "Add 1."))
    items = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts, "tool_calls": None}]
    assert read_messages(items) == read_messages(json.dumps(items)) == expected


def test_tools_may_be_objects_json_text_or_missing() -> None:
    spec = (ToolSpec("add", "Adds.", SCHEMA),)
    assert read_tools([TOOL]) == read_tools(json.dumps([TOOL])) == read_tools([TOOL["function"]]) == spec
    assert read_tools(None) == read_tools("") == read_tools([]) == ()
    (bare,) = read_tools([{"function": {"name": "now", "parameters": {"type": "object"}}}])
    assert bare.parameters["properties"] == {}, "chat templates read this key"


def said(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "x", **fields}


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (3, "it must be a list of messages, each with 'role' and 'content', not 3"),
        ("hello", "it must be a list of messages, .*, not 'hello'"),
        ([USER, "hello"], "message 2: it must be an object with 'role' and 'content', not 'hello'"),
        ([{"from": "human", "value": "x"}], "message 1: its role is null, and must be one of system, developer, user"),
        ([{"role": "bot", "content": "x"}], "message 1: its role is 'bot'"),
        ([{"role": "user"}], "message 1: it has no 'content'"),
        ([{"role": "user", "content": 5}], "message 1: its content must be text, not 5"),
        (
            [{"role": "user", "content": [{"type": "image_url"}]}],
            "message 1: its content has a part of the type 'image_url'",
        ),
        ([USER, {"role": "assistant", "content": ""}], "message 2: the assistant neither says nor calls anything"),
        ([USER, said(tool_calls=[{"id": "c"}])], "message 2: a tool call must be an object with 'function'"),
        ([USER, said(tool_calls="add")], "message 2: it must be a list of tool calls, not 'add'"),
        ([USER, said(tool_calls=[{"name": "add", "arguments": "{"}])], "the arguments of 'add' must be a JSON object"),
        ([USER, said(tool_calls=[{"name": "add", "arguments": [1]}])], r"must be a JSON object, not '\[1\]'"),
    ],
)
def test_a_wrong_message_is_named_with_its_number(value: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_messages(value)


@pytest.mark.parametrize("value", ["add", [{"name": ""}], [3], [{"name": "add", "parameters": "int"}], {"name": "add"}])
def test_wrong_tools_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"tools in OpenAI's form|tool 1 must be an object"):
        read_tools(value)
