"""What is no fault of the agent is noted in its session, and no JSON that is none goes out."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest
from official_clients import ANTHROPIC_TOOL, CHAT_TOOL
from raw_requests import ASKED, every_api, post, refused
from served_sessions import ServedSession

from ale.errors import RequestRefused, SessionError
from ale.messages import ToolCall, refuse_constant, whole_json
from ale_endpoint.dialects import DIALECTS
from ale_testing.fake_engines import ScriptedEngine


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
async def test_numbers_that_json_does_not_have_make_a_call_text(
    chat: openai.AsyncOpenAI,
    claude: anthropic.AsyncAnthropic,
    session: ServedSession,
    engine: ScriptedEngine,
    number: str,
) -> None:
    says = f'<tool_call>\n{{"name": "shell", "arguments": {{"command": {number}}}}}\n</tool_call>'
    engine.texts = [says, says]
    asked: Any = [{"role": "user", "content": "x"}]
    made = await claude.messages.create(model="m", max_tokens=99, messages=asked, tools=[ANTHROPIC_TOOL])
    assert [block.type for block in made.content] == ["text"]
    reply = (await chat.chat.completions.create(model="m", messages=asked, tools=[CHAT_TOOL])).choices[0].message
    assert (reply.content, reply.tool_calls) == (says, None)
    assert session.fault is None
    assert [chunk.error.kind for chunk in session.recorder.chunks if chunk.error] == ["illegal_call"] * 2


@every_api
@pytest.mark.parametrize("where", ["answer", "read", "session"])
async def test_an_exception_of_ours_is_the_sessions_fault_and_may_be_tried_again(
    session: ServedSession, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, path: str, where: str
) -> None:
    def breaks(*args: Any, **more: Any) -> Any:
        raise ZeroDivisionError("ours")

    engine.texts = ["x", "y"]
    with monkeypatch.context() as patched:
        if where == "session":
            patched.setattr(session.recorder, "prompt", breaks)
        else:
            dialect = next(each for each in DIALECTS if each.path.endswith(path))
            patched.setattr(type(dialect), where, breaks)
        refused(await post(session, path), 500, path, "ZeroDivisionError")
    assert isinstance(session.fault, SessionError)
    assert session.fault.retryable
    assert (await post(session, path)).status_code == 200
    assert session.fault is None, "the agent went on"


async def test_a_history_that_the_template_cannot_write_is_refused_with_its_reason(
    session: ServedSession, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(**variables: Any) -> str:
        raise TypeError("Can only get item pairs from a mapping.")

    class Broken:
        render = staticmethod(breaks)

    template = session._sessions.tokenizer.template
    with monkeypatch.context() as patched:
        patched.setattr(template, "_default", Broken())
        refused(await post(session, "chat/completions"), 400, "chat/completions", "chat template refuses")
    assert isinstance(session.fault, RequestRefused)


@pytest.mark.parametrize("arguments", ["", "{}"])
async def test_a_call_without_arguments_in_the_history_has_none(
    session: ServedSession, engine: ScriptedEngine, arguments: str
) -> None:
    engine.texts = ["x"]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    talk = [*ASKED["chat/completions"]["messages"], {"role": "assistant", "tool_calls": [call]}]
    body = json.dumps({"messages": [*talk, {"role": "tool", "tool_call_id": "c", "content": "ok"}]})
    assert (await post(session, "chat/completions", body.encode())).status_code == 200
    (line,) = session.recorder.sequences
    assert line.messages[1].tool_calls[0].parsed_arguments() == {}


def test_halves_of_characters_are_replaced_in_json_also_as_escapes() -> None:
    assert whole_json(r'{"a": "\ud83d"}') == '{"a": "\ufffd"}'
    assert whole_json(r'{"a": "\ud83d\ude00"}') == r'{"a": "\ud83d\ude00"}', "a whole one stays as it was written"
    with pytest.raises(ValueError, match="NaN is not a number in JSON"):
        ToolCall("c", "f", '{"a": NaN}').parsed_arguments()
    with pytest.raises(ValueError, match="too large"):
        ToolCall("c", "f", '{"a": 1e999}').parsed_arguments()
    with pytest.raises(ValueError, match="Infinity"):
        refuse_constant("Infinity")


@pytest.mark.parametrize("path", ["chat/completions", "messages"])  # Responses has no stop texts
async def test_a_stop_text_ends_the_answer_and_not_the_thoughts(
    session: ServedSession, engine: ScriptedEngine, path: str
) -> None:
    engine.texts = ["<think>Question: what?</think>\n\nIt is 5.", "<think>t</think>\n\nIt is 5.\nQuestion: next"]
    stop = "stop_sequences" if path == "messages" else "stop"
    for _ in range(2):
        answer = await post(session, path, json.dumps({**ASKED[path], stop: ["Question:"]}).encode())
        assert "It is 5." in answer.text
        assert "next" not in answer.text
    assert [chunk.error for chunk in session.recorder.chunks] == [None, None]


async def test_the_bytes_of_tokens_join_to_the_text(chat: openai.AsyncOpenAI, engine: ScriptedEngine) -> None:
    text = "é\U0001f600 and \ufffd!"
    engine.texts = [text] * 3
    asked: Any = [{"role": "user", "content": "x"}]
    for more in ({}, {"stop": "!"}):
        made: Any = await chat.chat.completions.create(model="m", messages=asked, logprobs=True, **more)
        (choice,) = made.choices
        tokens = choice.logprobs.content
        assert b"".join(bytes(token.bytes or ()) for token in tokens).decode() == choice.message.content
        assert tokens[0].bytes == [0xC3], "one token a byte"
    whole: Any = await chat.responses.create(model="m", input="x", include=["message.output_text.logprobs"])
    (part,) = whole.output[0].content
    assert b"".join(bytes(token.bytes or ()) for token in part.logprobs).decode() == text


async def test_the_models_route_has_the_shape_that_anthropics_client_knows(claude: anthropic.AsyncAnthropic) -> None:
    found = await claude.models.retrieve("policy")
    assert (found.id, found.type, found.display_name) == ("policy", "model", "policy")
    assert found.created_at is not None
    assert [model.type async for model in claude.models.list()] == ["model"]


@pytest.mark.parametrize(
    "thought", [{"summary": []}, {"summary": [], "content": None}, {"summary": [{"type": "summary_text", "text": "s"}]}]
)
async def test_an_item_of_thoughts_without_content_makes_no_turn_of_its_own(
    chat: openai.AsyncOpenAI, session: ServedSession, engine: ScriptedEngine, thought: dict[str, Any]
) -> None:
    engine.texts = ["<think>t</think>\n\nHello", "x"]
    asked: Any = [{"role": "user", "content": "a"}]
    made = await chat.responses.create(model="m", input=asked)
    message = next(item.model_dump() for item in made.output if item.type == "message")
    more: Any = [*asked, {"type": "reasoning", "id": "rs", **thought}, message, {"role": "user", "content": "b"}]
    await chat.responses.create(model="m", input=more)
    (line,) = session.recorder.sequences
    assert [each.role for each in line.messages] == ["user", "assistant", "user", "assistant"]
