"""Calls forwarded to another server: what it is sent, what is tried again, and whose fault what is not."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from email.utils import formatdate
from typing import Any

import pytest
from upstreams import CALL, Fault, Faulty, breaks, fails, garbage, hangs, instant, real, says, sends

from ale.errors import AleError, BudgetExceeded, ConfigError, EngineError, RequestRefused
from ale.messages import Answer, Message, ModelCall, ToolSpec
from ale.session.replies import unsampled_error
from ale_endpoint.dialects import DIALECTS
from ale_endpoint.server import listener_at
from ale_endpoint.upstream import Route, Upstream, retry_after_s

KEY = "sk-upstream-0123456789"
GO = (Message("user", "go"),)
TOOL = ToolSpec("shell", "Runs.", {"type": "object", "properties": {"command": {"type": "string"}}})


@pytest.fixture
async def faulty() -> AsyncIterator[Faulty]:
    async with Faulty().up() as server:
        yield server


def to(server: Faulty, **settings: Any) -> Upstream:
    """An upstream that does not wait long."""
    return Upstream([Route(server.url, key=KEY, key_from="the variable K")], **{"first_wait_s": 0.01, **settings})


async def test_a_conversation_with_tools_goes_to_a_real_server_and_back() -> None:
    async with real() as (session, engine), Upstream([Route(session.base_url, key=session.api_key)]) as upstream:
        engine.texts = [f"I look.{CALL}", "done"]
        first = await upstream.answer(ModelCall((Message("system", "Act."), *GO), (TOOL,)))
        (reply,) = first.replies
        assert (reply.message.content, reply.finish_reason) == ("I look.", "tool_calls")
        (call,) = reply.message.tool_calls
        assert (call.name, call.arguments) == ("shell", '{"command": "ls"}')
        history = (Message("system", "Act."), *GO, reply.message, Message("tool", "a.txt", tool_call_id=call.id))
        (last,) = (await upstream.answer(ModelCall(history, (TOOL,)))).replies
        assert (last.message.content, last.finish_reason) == ("done", "stop")
        assert last.prompt_tokens > reply.prompt_tokens > 0
        (line,) = session.recorder.sequences
        assert [m.role for m in line.messages] == ["system", "user", "assistant", "tool", "assistant"]


async def test_what_the_agent_asks_for_is_asked_for(faulty: Faulty) -> None:
    faulty.script = [says(), says(), says()]
    asked = ModelCall(
        GO,
        (TOOL,),
        "shell",
        99,
        ("END",),
        model="big",
        logprobs=True,
        ignored={"metadata": {"user": "x"}, "top_k": 3},
        passed_on={"temperature": 0.2, "reasoning_effort": "low"},
    )
    async with to(faulty) as upstream:
        await upstream.answer(asked)
        await upstream.answer(ModelCall(GO, tool_choice="required"))
    first, second = faulty.bodies
    assert first["messages"] == [{"role": "user", "content": "go"}]
    assert first["tools"] == [TOOL.to_openai()]
    assert first["tool_choice"] == {"type": "function", "function": {"name": "shell"}}
    picked = {key: first[key] for key in ("model", "max_tokens", "stop", "logprobs", "temperature", "reasoning_effort")}
    assert picked == {
        "model": "big",
        "max_tokens": 99,
        "stop": ["END"],
        "logprobs": True,
        "temperature": 0.2,
        "reasoning_effort": "low",
    }
    assert not {"metadata", "top_k", "n"} & set(first)
    assert set(second) == {"model", "messages"}, "no choice of tools without tools"
    assert faulty.keys == [f"Bearer {KEY}"] * 2


async def test_several_answers_are_gathered_from_a_server_that_makes_one(faulty: Faulty) -> None:
    faulty.script = [says("a"), says("b"), says("c")]
    async with to(faulty) as upstream:
        answer = await upstream.answer(ModelCall(GO, n=3))
    assert [reply.message.content for reply in answer.replies] == ["a", "b", "c"]
    assert [body.get("n") for body in faulty.bodies] == [3, 2, None]
    assert answer.usage["total_tokens"] == 30


async def test_a_model_that_wants_the_other_name_for_the_longest_answer_gets_it(faulty: Faulty) -> None:
    told = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    faulty.script = [fails(400, told), says(), says()]
    async with to(faulty) as upstream:
        for _ in range(2):
            await upstream.answer(ModelCall(GO, max_tokens=5))
    assert [set(body) - {"model", "messages"} for body in faulty.bodies] == [
        {"max_tokens"},
        {"max_completion_tokens"},
        {"max_completion_tokens"},
    ]


async def test_a_limit_among_the_parameters_takes_the_name_that_the_server_wants(faulty: Faulty) -> None:
    faulty.script = [fails(400, "Use 'max_completion_tokens' instead of 'max_tokens'."), says()]
    async with to(faulty, parameters={"max_tokens": 7}) as upstream:
        await upstream.answer(ModelCall(GO, max_tokens=5))
    limits = [{name: value for name, value in body.items() if name.startswith("max_")} for body in faulty.bodies]
    assert limits == [{"max_tokens": 7}, {"max_completion_tokens": 7}]


@pytest.mark.parametrize("word", ["abort", "error", "network_error", "insufficient_system_resource", 7])
async def test_a_generation_that_was_broken_off_is_no_answer(faulty: Faulty, word: object) -> None:
    cut = sends({"choices": [{"message": {"content": "half of an ans"}, "finish_reason": word}]})
    faulty.script = [cut, says(), cut]
    async with to(faulty) as upstream:
        assert (await upstream.answer(ModelCall(GO))).replies[0].message.content == "hello", "tried again"
    faulty.script = [cut]
    async with to(faulty, attempts=1) as upstream:
        with pytest.raises(EngineError, match="was broken off") as told:
            await upstream.answer(ModelCall(GO))
    assert told.value.retryable


@pytest.mark.parametrize(
    ("word", "finish"),
    [("eos", "stop"), ("stop_sequence", "stop"), ("MAX_TOKENS", "length"), ("model_length", "length"), (None, "stop")],
)
async def test_the_words_of_other_servers_for_an_end_are_known(faulty: Faulty, word: object, finish: str) -> None:
    faulty.script = [sends({"choices": [{"message": {"content": "whole"}, "finish_reason": word}]})]
    async with to(faulty) as upstream:
        assert (await upstream.answer(ModelCall(GO))).replies[0].finish_reason == finish


@pytest.mark.parametrize(
    "fault",
    [
        fails(500),
        fails(503),
        fails(429),
        fails(408),
        garbage,
        breaks,
        sends({"choices": []}),
        sends([1]),
        sends({"choices": [{"message": {"content": 7}}]}),
        sends({"error": {"code": 502, "message": "of a gateway"}}),
    ],
)
async def test_what_may_pass_is_tried_again(faulty: Faulty, fault: Fault) -> None:
    faulty.script = [fault, says()]
    async with to(faulty) as upstream:
        assert (await upstream.answer(ModelCall(GO))).replies[0].message.content == "hello"
    assert len(faulty.bodies) == 2


async def test_what_does_not_pass_is_an_engine_fault_in_the_end(faulty: Faulty) -> None:
    faulty.script = [fails(500, f"boom, said {KEY}")] * 3
    async with to(faulty, attempts=3) as upstream:
        with pytest.raises(
            EngineError, match=r"answers 500: boom, said \[the variable K\]. It was tried 3 times"
        ) as told:
            await upstream.answer(ModelCall(GO))
    assert told.value.retryable
    assert KEY not in repr(told.value)


async def test_a_server_that_hangs_or_is_not_there_is_an_engine_fault(faulty: Faulty) -> None:
    faulty.script = [hangs, *[says()] * 20]  # on a busy machine more than one attempt may be too late
    async with to(faulty, timeout_s=0.2) as upstream:
        assert (await upstream.answer(ModelCall(GO))).replies
    faulty.script = [hangs] * 20
    async with to(faulty, timeout_s=0.1, attempts=2) as upstream:
        with pytest.raises(EngineError, match=r"did not answer within 0.1 s"):
            await upstream.answer(ModelCall(GO))
    async with Upstream([Route("http://127.0.0.1:1/v1")], attempts=2, first_wait_s=0.01) as nowhere:
        with pytest.raises(EngineError, match="cannot be reached"):
            await nowhere.answer(ModelCall(GO))


async def test_a_server_that_is_away_for_a_while_costs_no_call() -> None:
    """For eight times the first wait, which stands for 4 s; without a lower bound of the waits some calls give up."""
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(listener_at("127.0.0.1", 0))  # bound, but nobody listens
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        upstream = await stack.enter_async_context(Upstream([Route(url)], first_wait_s=0.05))
        calls = [asyncio.ensure_future(upstream.answer(ModelCall(GO))) for _ in range(50)]
        await asyncio.sleep(0.4)
        await stack.enter_async_context(instant(listener))
        answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers] == [Answer] * 50


async def test_why_a_reply_ended_stays(faulty: Faulty) -> None:
    cut = {"message": {"role": "assistant", "content": "I can"}, "finish_reason": "content_filter"}
    faulty.script = [sends({"choices": [cut]})]
    async with to(faulty) as upstream:
        (reply,) = (await upstream.answer(ModelCall(GO))).replies
    assert reply.finish_reason == "content_filter"
    assert unsampled_error(reply) is not None, "a reply that was cut is no example to train on"
    ended = [dialect.answer(ModelCall(GO), [reply], "c") for dialect in DIALECTS]
    assert ended[0]["choices"][0]["finish_reason"] == "content_filter"
    assert (ended[1]["status"], ended[1]["incomplete_details"]) == ("incomplete", {"reason": "content_filter"})
    assert ended[2]["stop_reason"] == "refusal"


async def test_retry_after_is_waited_for_and_a_long_one_is_told_at_once(faulty: Faulty) -> None:
    faulty.script = [fails(429, retry_after="0.4"), says()]
    async with to(faulty) as upstream:
        await upstream.answer(ModelCall(GO))
        assert faulty.times[1] - faulty.times[0] >= 0.4
        faulty.script = [fails(429, retry_after="3600")]
        with pytest.raises(EngineError, match="asks to come back in 3600 s"):
            await upstream.answer(ModelCall(GO))


def test_retry_after_is_read_as_a_number_or_a_date() -> None:
    assert retry_after_s("2") == 2
    assert retry_after_s("-1") == retry_after_s(formatdate(0, usegmt=True)) == 0
    later = retry_after_s(formatdate(time.time() + 500, usegmt=True))
    assert later is not None
    assert 400 < later <= 500
    assert retry_after_s(None) is retry_after_s("soon") is None


@pytest.mark.parametrize(
    ("fault", "error", "sentence"),
    [
        (fails(401, f"Incorrect API key {KEY[:6]}***"), ConfigError, "refuses the key from the variable K .401."),
        (fails(403), ConfigError, "refuses the key"),
        (fails(402), ConfigError, "wants to be paid"),
        (fails(429, "You are out of credits", "insufficient_quota"), ConfigError, "out of credits"),
        (fails(400, "Too much", "context_length_exceeded"), BudgetExceeded, "no room"),
        (fails(400, "This model's maximum context length is 8192 tokens."), BudgetExceeded, "no room"),
        (fails(400, "'messages' are bad"), RequestRefused, "'messages' are bad"),
        (fails(404, "no such model", "model_not_found"), RequestRefused, "no such model"),
        (sends("<html>", 404), ConfigError, "many URLs end in /v1"),
        (sends("", 301, location="http://elsewhere.invalid/"), ConfigError, "serves no chat completions"),
        (fails(422), RequestRefused, "refuses the request .422."),
    ],
)
async def test_what_will_not_pass_is_told_at_once_by_whose_fault_it_is(
    faulty: Faulty, fault: Fault, error: type[AleError], sentence: str
) -> None:
    faulty.script = [fault]
    async with to(faulty) as upstream:
        with pytest.raises(error, match=sentence) as told:
            await upstream.answer(ModelCall(GO))
    assert not told.value.retryable
    assert KEY[:6] not in str(told.value)
    assert len(faulty.bodies) == 1


async def test_calls_whose_arguments_are_no_object_are_text_with_a_sentence(faulty: Faulty) -> None:
    def calling(arguments: str, call_id: str | None = None) -> Fault:
        return says(None, tool_calls=[{"id": call_id, "function": {"name": "shell", "arguments": arguments}}])

    faulty.script = [calling(""), calling("[1]"), calling('{"a'), says(None, refusal="I will not."), says(None)]
    async with to(faulty) as upstream:
        made = [(await upstream.answer(ModelCall(GO))).replies[0] for _ in range(5)]
    (call,) = made[0].message.tool_calls
    assert (call.arguments, bool(call.id), made[0].finish_reason) == ("{}", True, "tool_calls")
    for reply in made[1:3]:
        assert reply.message.tool_calls == ()
        assert "<tool_call>" in reply.message.content
        assert reply.illegal is not None
        assert reply.finish_reason == "stop"
    assert [reply.message.content for reply in made[3:]] == ["I will not.", ""]


async def test_names_of_models_lead_to_servers_and_each_key_to_its_own(faulty: Faulty) -> None:
    async with Faulty().up() as other:
        faulty.script, other.script = [says("one"), says("three")], [says("two")]
        routes = [
            Route(faulty.url, "gpt-*", key="key-one"),
            Route(other.url, "small", "Qwen/Qwen3-8B", key="key-two"),
            Route(faulty.url, "open"),
        ]
        async with Upstream(routes) as upstream:
            said = [
                (await upstream.answer(ModelCall(GO, model=name))).replies[0].message.content
                for name in ("gpt-9", "small", "open")
            ]
            with pytest.raises(RequestRefused, match=r"No route leads to a model 'x'; there are gpt-\*, small, open"):
                await upstream.answer(ModelCall(GO, model="x"))
        assert said == ["one", "two", "three"]
        assert (faulty.keys, other.keys) == (["Bearer key-one", None], ["Bearer key-two"])
        assert other.bodies[0]["model"] == "Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("host/v1", "must be a URL"),
        ("ftp://host", "must be a URL"),
        ("http://me:secret@host/v1", "user or a password"),
        ("https://host/v1?key=x", r"without '\?'"),
    ],
)
def test_a_url_that_is_none_is_refused(url: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as told:
        Route(url)
    assert "secret" not in str(told.value)
    with pytest.raises(ConfigError, match="printable ASCII") as told:
        Route("http://host", key="two\nlines", key_from="K")
    assert "lines" not in str(told.value)


async def test_who_gives_up_ends_the_call(faulty: Faulty) -> None:
    faulty.script = [hangs]
    async with to(faulty) as upstream:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await upstream.answer(ModelCall(GO))
    assert time.monotonic() - began < 20


async def test_words_that_stand_for_no_key_are_no_secret(faulty: Faulty) -> None:
    upstream = Upstream([Route(faulty.url, key="EMPTY", key_from="K"), Route(faulty.url, key=KEY, key_from="L")])
    assert upstream.redact(f"EMPTY {KEY}") == "EMPTY [L]"


def test_a_key_is_shown_nowhere() -> None:
    assert KEY not in repr(Route("http://host", key=KEY))


async def test_many_calls_at_once_cost_no_more_than_one_after_the_other() -> None:
    """A pool that looks at each of its connections for each call makes them cost several times as much."""

    async def work_of_a_call(upstream: Upstream, at_once: int) -> float:
        """The function calls that the interpreter makes for one, which say the same on a busy machine."""
        made = itertools.count()
        sys.setprofile(lambda frame, event, argument: next(made) if event in ("call", "c_call") else None)
        try:
            for _ in range(192 // at_once):
                await asyncio.gather(*(upstream.answer(ModelCall(GO)) for _ in range(at_once)))
        finally:
            sys.setprofile(None)
        return next(made) / 192

    async with instant() as url, Upstream([Route(url)]) as upstream:
        one = await work_of_a_call(upstream, 1)
        await asyncio.gather(*(upstream.answer(ModelCall(GO)) for _ in range(64)))  # opens their connections
        many = await work_of_a_call(upstream, 64)
    assert many < 1.5 * one, f"{many / one:.2f} times as much"
