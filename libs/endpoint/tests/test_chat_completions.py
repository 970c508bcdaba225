"""Chat completions as the official client sees them: tools, streams, choices, limits, and calls that take long."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import httpx
import openai
import pytest
from official_clients import CHAT_TOOL, LONG, TWO, exact
from served_sessions import ServedSession, ServedSessions

from ale.errors import EngineError
from ale.specs.engine import Sampling
from ale_testing.fake_engines import CALL, ScriptedEngine


async def test_chat_with_tools_is_one_line_of_tokens(
    chat: openai.AsyncOpenAI, session: ServedSession, engine: ScriptedEngine
) -> None:
    engine.texts = [TWO, "done"]
    messages: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "go"}]},
    ]
    first = await chat.chat.completions.create(
        model="any", messages=messages, tools=[CHAT_TOOL], temperature=0.1, user="me"
    )
    said = first.choices[0].message
    assert (first.model, first.choices[0].finish_reason, said.content) == ("any", "tool_calls", "I look.")
    calls: list[Any] = list(said.tool_calls or [])
    assert [json.loads(call.function.arguments)["command"] for call in calls] == ["ls", "pwd"]
    assert len({call.id for call in calls}) == 2
    messages.append(said.model_dump())  # with all the nulls that the client puts there
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "out"} for call in calls]
    second = await chat.chat.completions.create(model="any", messages=messages, tools=[CHAT_TOOL])
    assert (second.choices[0].message.content, second.choices[0].finish_reason) == ("done", "stop")
    assert second.usage is not None
    assert second.usage.total_tokens == len(session.recorder.sequences[0].token_ids)
    exact(session, engine)
    assert engine.requests[0].sampling.temperature == 1.0, "the session's, not the agent's"
    assert [chunk.asked for chunk in session.recorder.chunks] == [{"temperature": 0.1, "user": "me"}, {}]


@pytest.mark.parametrize("text", [LONG, TWO, ""])
async def test_a_stream_says_what_the_whole_answer_says(
    chat: openai.AsyncOpenAI, engine: ScriptedEngine, text: str
) -> None:
    engine.texts = [text, text]
    messages: list[Any] = [{"role": "user", "content": "go"}]
    whole = (await chat.chat.completions.create(model="m", messages=messages, tools=[CHAT_TOOL])).choices[0]
    async with chat.chat.completions.stream(
        model="m", messages=messages, tools=[CHAT_TOOL], stream_options={"include_usage": True}
    ) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_completion()
    got = final.choices[0]
    assert (got.finish_reason, got.message.content or "") == (whole.finish_reason, whole.message.content or "")
    calls = [[(c.function.name, c.function.arguments) for c in m.message.tool_calls or []] for m in (got, whole)]  # type: ignore[union-attr]
    assert calls[0] == calls[1]
    assert final.usage is not None
    assert final.usage.completion_tokens > 0
    if text:
        assert len([event for event in events if event.type == "chunk"]) > 3


async def test_choices_stops_lengths_and_logprobs(
    chat: openai.AsyncOpenAI, session: ServedSession, engine: ScriptedEngine
) -> None:
    messages: list[Any] = [{"role": "user", "content": "go"}]
    engine.texts = ["one", "two", "three"]
    made = await chat.chat.completions.create(model="m", messages=messages, n=3, logprobs=True)
    assert [choice.message.content for choice in made.choices] == ["one", "two", "three"]
    logprobs = made.choices[1].logprobs
    assert logprobs is not None
    assert [(token.token, token.logprob) for token in (logprobs.content or [])[:3]] == [
        ("t", -0.5),
        ("w", -0.5),
        ("o", -0.5),
    ]
    assert [len(c) for c in session.recorder.chunks] == [4, 4, 6], "each is trained on, on a line of its own"
    engine.texts = ["ab STOP cd", "much longer than that"]
    cut = (await chat.chat.completions.create(model="m", messages=messages, stop=["STOP", "x"])).choices[0]
    assert (cut.message.content, cut.finish_reason) == ("ab ", "stop")
    chunk = session.recorder.chunks[-1]
    assert (len(chunk), chunk.error) == (len("ab STOP"), None), "what was sampled after the stop is nobody's"
    short = (await chat.chat.completions.create(model="m", messages=messages, max_completion_tokens=4)).choices[0]
    assert (short.message.content, short.finish_reason) == ("much", "length")
    engine.texts = [CALL]
    none = (
        await chat.chat.completions.create(model="m", messages=messages, tools=[CHAT_TOOL], tool_choice="none")
    ).choices[0]
    assert (none.message.content, none.message.tool_calls) == (CALL, None)


async def test_models(chat: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic) -> None:
    assert [model.id async for model in chat.models.list()] == ["policy"]
    assert (await chat.models.retrieve("org/name")).id == "org/name"
    assert [model.id async for model in claude.models.list()] == ["policy"]


@pytest.mark.parametrize("stream", [False, True])
async def test_who_hangs_up_ends_the_generation(session: ServedSession, engine: ScriptedEngine, stream: bool) -> None:
    engine.wait = asyncio.Event()
    body = {"messages": [{"role": "user", "content": "go"}], "stream": stream}
    headers = {"Authorization": f"Bearer {session.api_key}"}
    async with httpx.AsyncClient(trust_env=False, timeout=None) as client:
        asking = asyncio.create_task(client.post(f"{session.base_url}/chat/completions", json=body, headers=headers))
        async with asyncio.timeout(60):
            while not engine.requests:  # noqa: ASYNC110 - the engine tells nobody
                await asyncio.sleep(0.01)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            while not engine.cancelled:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert (engine.cancelled, len(engine.requests)) == (1, 1)
    assert session.recorder.chunks == ()


async def test_a_slow_answer_keeps_its_stream_alive_and_its_error_is_an_event(
    chat: openai.AsyncOpenAI, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ale_endpoint.http_app.PATIENCE_S", 0.05)
    monkeypatch.setattr("ale_endpoint.http_app.ALIVE_S", 0.05)
    engine.wait, engine.texts = asyncio.Event(), ["late"]
    messages: list[Any] = [{"role": "user", "content": "go"}]
    asyncio.get_running_loop().call_later(0.4, engine.wait.set)
    stream = await chat.chat.completions.create(model="m", messages=messages, stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "late"
    engine.wait, engine.error = asyncio.Event(), EngineError("gone")
    asyncio.get_running_loop().call_later(0.4, engine.wait.set)
    stream = await chat.chat.completions.create(model="m", messages=messages, stream=True)
    with pytest.raises(openai.APIError, match="gone"):
        _ = [chunk async for chunk in stream]


async def test_an_episode_samples_no_more_tokens_than_it_may(endpoint: ServedSessions, engine: ScriptedEngine) -> None:
    session = endpoint.open("few", Sampling(max_tokens=99), max_calls=9, max_context=999, max_sampled_tokens=6)
    engine.texts = ["abcd", "efgh"]
    body = {"messages": [{"role": "user", "content": "go"}]}
    headers = {"Authorization": f"Bearer {session.api_key}"}
    async with httpx.AsyncClient(trust_env=False, base_url=session.base_url, headers=headers) as client:
        answers = [(await client.post("/chat/completions", json=body)).json() for _ in range(3)]
    choices = [answer["choices"][0] for answer in answers[:2]]
    assert [(c["message"]["content"], c["finish_reason"]) for c in choices] == [("abcd", "stop"), ("e", "length")]
    assert "rollout.max_sampled_tokens" in answers[2]["error"]["message"]
    assert sum(len(chunk) for chunk in session.recorder.chunks) == 6
