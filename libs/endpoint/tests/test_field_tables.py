"""Every field that the official clients can send is in the tables, and nothing of a forwarded call is lost silently."""

from __future__ import annotations

import collections.abc
import json
import runpy
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints

import anthropic.types.beta.message_create_params as beta_messages
import anthropic.types.message_create_params as messages
import httpx
import openai.types.chat.completion_create_params as completions
import openai.types.responses.response_create_params as responses
import pytest
from served_upstream import served
from typing_extensions import is_typeddict
from upstreams import Faulty, sends

from ale_endpoint.dialects import DIALECTS
from ale_endpoint.dialects.field_tables import ANTHROPIC_MESSAGES, CHAT_COMPLETIONS, RESPONSES
from ale_endpoint.dialects.fields import OTHERS, REQUEST, Rule, Shape, Table, check_fields, kind_of, patterns, shape_of
from ale_endpoint.forwarding import Forwarding
from ale_endpoint.upstream import Route, Upstream

REQUESTS = {
    "chat": (CHAT_COMPLETIONS, completions.CompletionCreateParamsNonStreaming),
    "responses": (RESPONSES, responses.ResponseCreateParamsNonStreaming),
    "anthropic": (ANTHROPIC_MESSAGES, messages.MessageCreateParamsNonStreaming),
    "anthropic beta": (ANTHROPIC_MESSAGES, beta_messages.MessageCreateParamsNonStreaming),
}


def plain(hint: Any) -> Any:
    """A type without `Required` and its like."""
    while get_origin(hint) in (Annotated, Required, NotRequired):
        hint = get_args(hint)[0]
    return hint


def objects(hint: Any) -> Iterator[type]:
    """The objects that a value of this type may be, or hold in a list."""
    hint = plain(hint)
    if is_typeddict(hint):
        yield hint
    elif get_origin(hint) in (Union, list, collections.abc.Iterable) or "Union" in repr(get_origin(hint)):
        for each in get_args(hint):
            yield from objects(each)


def types(shape: type) -> list[str]:
    """The words that the field `type` of an object may be; an empty one if it has none."""
    hint = plain(get_type_hints(shape).get("type"))
    each = [plain(one) for one in (get_args(hint) if get_origin(hint) is Union else [hint])]
    words = [word for one in each if get_origin(one) is Literal for word in get_args(one)]
    return words or [""]


def unknown_fields(table: Table, shape: Shape | Rule, asked: type, place: str, seen: frozenset[Any]) -> Iterator[str]:
    """Yield the fields of an object that the table does not name."""
    if isinstance(shape, Rule):
        return
    for name, hint in get_type_hints(asked).items():
        rule = shape.get(name)
        if rule is None:
            yield f"{place}.{name}"
        elif rule.within:
            for each in objects(hint):
                for kind in types(each):
                    found = shape_of(table, rule.within, {"type": kind})
                    step = f"{place}.{name}[{kind}]"
                    if found is None:
                        yield step
                    elif (each, rule.within) not in seen:
                        yield from unknown_fields(table, found, each, step, seen | {(each, rule.within)})


@pytest.mark.parametrize("api", REQUESTS)
def test_every_field_of_the_official_clients_requests_is_in_the_table(api: str) -> None:
    table, asked = REQUESTS[api]
    assert sorted(set(unknown_fields(table, table[REQUEST], asked, "", frozenset()))) == []


def test_a_field_that_a_client_would_bring_anew_is_found() -> None:
    lacking = {**RESPONSES, "text": {}, "item[reasoning]": {"type": Rule("used", "used")}}
    found = set(unknown_fields(lacking, lacking[REQUEST], REQUESTS["responses"][1], "", frozenset()))
    assert {".text[].format", ".text[].verbosity", ".input[reasoning].encrypted_content"} <= found


@pytest.mark.parametrize("table", [CHAT_COMPLETIONS, RESPONSES, ANTHROPIC_MESSAGES])
def test_a_table_says_why_a_field_changes_nothing_and_leads_to_shapes_that_are_there(table: Table) -> None:
    for shape in table.values():
        for rule in [shape] if isinstance(shape, Rule) else shape.values():
            uses = {rule.session, rule.upstream}
            assert rule.note or not uses & {"ignored", "refused"}
            assert not rule.within or rule.within in table or list(patterns(table, rule.within))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_refusal_of_a_request_names_its_field(dialect: Any) -> None:
    request = dialect.fields[REQUEST]
    for name, rule in request.items():
        for server in ("session", "upstream"):
            if name != OTHERS and rule.use(server) == "refused":
                with pytest.raises(ValueError, match=f"'{name}' is refused: "):
                    check_fields(dialect.fields, {name: "something"}, server)
                for harmless in (None, *rule.harmless):
                    check_fields(dialect.fields, {name: harmless}, server)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_unknown_field_is_carried_or_refused_where_the_call_is_forwarded(dialect: Any) -> None:
    assert check_fields(dialect.fields, {"new_field": 1}, "session") == {}, "a session ignores and records it"
    if OTHERS in dialect.fields[REQUEST]:
        assert check_fields(dialect.fields, {"new_field": 1}, "upstream") == {"new_field": 1}
    else:
        with pytest.raises(ValueError, match="'new_field' is not known"):
            check_fields(dialect.fields, {"new_field": 1}, "upstream")


def test_the_page_has_the_table_of_today() -> None:
    script = runpy.run_path(str(Path(__file__).parents[3] / "scripts" / "write_field_table.py"))
    page = script["PAGE"].read_text()
    assert script["current"](page) == page, "run scripts/write_field_table.py"


Ask = Callable[[str, dict[str, Any]], Any]


@pytest.fixture
async def forwarded() -> AsyncIterator[Ask]:
    """Send a request through a forwarder; returns what the other server got, or the sentence of the refusal."""
    async with AsyncExitStack() as stack:
        faulty = await stack.enter_async_context(Faulty().up())
        upstream = await stack.enter_async_context(Upstream([Route(faulty.url)], attempts=1))
        origin = await stack.enter_async_context(served(Forwarding(upstream)))
        client = await stack.enter_async_context(httpx.AsyncClient(trust_env=False))

        async def ask(path: str, body: dict[str, Any], reply: dict[str, Any] | None = None) -> Any:
            choice = {"message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop", **(reply or {})}
            faulty.script, faulty.bodies = [sends({"choices": [choice]})], []
            answer = await client.post(f"{origin}/v1/{path}", content=json.dumps(body))
            ask.answer = answer  # type: ignore[attr-defined]
            return faulty.bodies[0] if answer.status_code == 200 else answer.json()["error"]["message"]

        yield ask


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
USER = [{"role": "user", "content": "go"}]
FUNCTION = {"type": "function", "function": {"name": "f", "strict": True, "parameters": SCHEMA}}


@pytest.mark.parametrize(
    ("path", "extra", "goes_out"),
    [
        (
            "responses",
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
                }
            },
        ),
        ("responses", {"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        ("responses", {"text": {"verbosity": "low"}}, {"verbosity": "low"}),
        ("responses", {"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ("responses", {"parallel_tool_calls": False, "user": "u"}, {"parallel_tool_calls": False, "user": "u"}),
        (
            "responses",
            {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
            {"logprobs": True, "top_logprobs": 2},
        ),
        (
            "messages",
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}, "effort": "high"}},
            {
                "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
                "reasoning_effort": "high",
            },
        ),
        ("messages", {"temperature": 0.5, "top_k": 7}, {"temperature": 0.5, "top_k": 7}),
        (
            "messages",
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            {"parallel_tool_calls": False},
        ),
        ("chat/completions", {"top_logprobs": 3, "logprobs": True, "min_p": 0.1}, {"top_logprobs": 3, "min_p": 0.1}),
        (
            "chat/completions",
            {"tools": [FUNCTION]},
            {"tools": [{**FUNCTION, "function": {**FUNCTION["function"], "description": ""}}]},
        ),  # type: ignore[dict-item]
    ],
)
async def test_what_another_api_calls_otherwise_is_carried(
    forwarded: Ask, path: str, extra: dict[str, Any], goes_out: dict[str, Any]
) -> None:
    sent = await forwarded(path, {"input" if path == "responses" else "messages": USER, **extra})
    assert isinstance(sent, dict), sent
    assert {key: sent.get(key) for key in goes_out} == goes_out


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("responses", {"input": "x", "conversation": "conv_1"}, "conversation"),
        ("responses", {"input": "x", "prompt": {"id": "p"}}, "prompt"),
        ("responses", {"input": "x", "background": True}, "background"),
        ("responses", {"input": "x", "tools": [{"type": "local_shell"}]}, "tools[0]"),
        ("responses", {"input": [{"type": "item_reference", "id": "i"}]}, "input[0]"),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "file_id"),
        ("messages", {"messages": USER, "container": "c"}, "container"),
        ("messages", {"messages": USER, "tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]"),
        ("messages", {"messages": [*USER, {"role": "assistant", "content": "The answer is ("}]}, "assistant"),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "odd": 1}]}]}, "odd"),
        ("chat/completions", {"messages": USER, "functions": [{"name": "f"}]}, "functions"),
        ("chat/completions", {"messages": USER, "audio": {"voice": "a", "format": "mp3"}}, "audio"),
        (
            "chat/completions",
            {"messages": [{"role": "assistant", "function_call": {"name": "f"}}, *USER]},
            "function_call",
        ),
    ],
)
async def test_what_cannot_be_carried_is_refused_by_name(
    forwarded: Ask, path: str, body: dict[str, Any], name: str
) -> None:
    told = await forwarded(path, body)
    assert isinstance(told, str)
    assert name in told


async def test_messages_keep_what_only_the_other_server_reads(forwarded: Ask) -> None:
    talk = [{"role": "user", "content": "go", "name": "ann"}, {"role": "assistant", "content": "I", "prefix": True}]
    assert (await forwarded("chat/completions", {"messages": talk}))["messages"] == talk
    sound = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
    file = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}}
    talk = [{"role": "user", "content": [{"type": "text", "text": "read"}, sound, file]}]
    assert (await forwarded("chat/completions", {"messages": talk}))["messages"] == talk


async def test_documents_errors_of_tools_and_search_results_reach_the_other_server(forwarded: Ask) -> None:
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
    blocks = [
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "DOC"}, "title": "a"},
        {"type": "document", "source": pdf, "title": "b.pdf"},
        {"type": "search_result", "source": "u", "title": "t", "content": [{"type": "text", "text": "found"}]},
    ]
    failed = {"type": "tool_result", "tool_use_id": "c", "content": "no such file", "is_error": True}
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]}
    talk = [*USER, use, {"role": "user", "content": [failed, *blocks]}]
    sent = (await forwarded("messages", {"max_tokens": 9, "messages": talk}))["messages"]
    assert sent[2] == {"role": "tool", "content": "[error] no such file", "tool_call_id": "c"}
    texts = [part.get("text") or part["file"] for part in sent[3]["content"]]
    assert texts == [
        "a\n",
        "DOC",
        "b.pdf\n",
        {"filename": "b.pdf", "file_data": "data:application/pdf;base64,JVBERi0="},
        "t\nu\n",
        "found",
    ]


@pytest.mark.parametrize("path", ["chat/completions", "responses"])
async def test_custom_tools_are_functions_whose_calls_come_back_as_texts(forwarded: Ask, path: str) -> None:
    grammar = {"syntax": "lark", "definition": "start: /a+/"}
    named = {"name": "patch", "description": "Patches."}
    if path == "responses":
        tool = {"type": "custom", **named, "format": {"type": "grammar", **grammar}}
    else:
        tool = {"type": "custom", "custom": {**named, "format": {"type": "grammar", "grammar": grammar}}}
    call = {"id": "c", "type": "function", "function": {"name": "patch", "arguments": '{"input": "aaa"}'}}
    reply = {"message": {"role": "assistant", "content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}
    body = {"input" if path == "responses" else "messages": USER, "tools": [tool]}
    sent = await forwarded(path, body, reply)  # type: ignore[call-arg]
    function = sent["tools"][0]["function"]
    assert (function["name"], list(function["parameters"]["properties"])) == ("patch", ["input"])
    assert "Patches." in function["description"]
    assert "start: /a+/" in function["description"]
    made = forwarded.answer.json()  # type: ignore[attr-defined]
    if path == "responses":
        assert made["output"][0]["input"] == "aaa"
    else:
        made_call = made["choices"][0]["message"]["tool_calls"][0]
        assert (made_call["type"], made_call["custom"]) == ("custom", {"name": "patch", "input": "aaa"})


async def test_of_allowed_tools_the_model_gets_these_alone(forwarded: Ask) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in "abc"]
    allowed = {"mode": "required", "tools": [tools[1]]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    sent = await forwarded("chat/completions", {"messages": USER, "tools": tools, "tool_choice": choice})
    assert ([tool["function"]["name"] for tool in sent["tools"]], sent["tool_choice"]) == (["b"], "required")
    flat = [{"type": "function", "name": name} for name in "abc"]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": flat[:2]}
    sent = await forwarded("responses", {"input": "x", "tools": flat, "tool_choice": choice})
    assert ([tool["function"]["name"] for tool in sent["tools"]], sent.get("tool_choice")) == (["a", "b"], None)
    told = await forwarded("responses", {"input": "x", "tools": flat[:1], "tool_choice": choice})
    assert "'b', which is not among the tools" in told


async def test_numbers_that_are_infinite_never_go_out(forwarded: Ask) -> None:
    told = await forwarded("chat/completions", {"messages": USER, "temperature": float("inf")})
    assert "Infinity is not a number in JSON" in told


async def test_replies_keep_likely_tokens_and_thinking_parts_as_thoughts(forwarded: Ask) -> None:
    likely = [{"token": "ok", "logprob": -0.1, "bytes": [111, 107]}, {"token": "no", "logprob": -3.0, "bytes": None}]
    entry = {**likely[0], "top_logprobs": likely}
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "ok"}]
    reply = {"message": {"role": "assistant", "content": parts}, "logprobs": {"content": [entry]}}
    body = {"messages": USER, "logprobs": True, "top_logprobs": 2}
    await forwarded("chat/completions", body, reply)  # type: ignore[call-arg]
    (choice,) = forwarded.answer.json()["choices"]  # type: ignore[attr-defined]
    assert choice["message"] == {"role": "assistant", "content": "ok", "reasoning_content": "hm"}
    assert choice["logprobs"]["content"] == [entry]


def test_kinds_are_read_from_the_names_of_shapes() -> None:
    assert [kind_of(name) for name in patterns(CHAT_COMPLETIONS, "tool")] == ["custom", "*"]
