"""The APIs of the endpoint, as the official clients of OpenAI and Anthropic see them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from served_sessions import ServedSession, ServedSessions

from ale.errors import EngineError
from ale.registry.hooks import Hooks
from ale.session.tokenizer import byte_tokenizer
from ale.specs.engine import Sampling
from ale_testing.fake_engines import CALL, ScriptedEngine

TWO = f"I look.{CALL}{CALL.replace('ls', 'pwd')}"
LONG = "A long answer of several words, so that a stream has more than one piece of it to carry. " * 4
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "shell", "description": "Runs.", "parameters": PARAMETERS}}
RESPONSES_TOOL: Any = {"type": "function", "name": "shell", "parameters": PARAMETERS, "strict": False}
ANTHROPIC_TOOL: Any = {"name": "shell", "description": "Runs.", "input_schema": PARAMETERS}


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
async def endpoint(engine: ScriptedEngine) -> AsyncIterator[ServedSessions]:
    model = ServedSessions(byte_tokenizer(), engine, Hooks())
    async with model:
        yield model


@pytest.fixture
def session(endpoint: ServedSessions) -> ServedSession:
    return endpoint.open("e1", Sampling(max_tokens=4000), max_calls=99, max_context=8192)


@pytest.fixture
async def chat(session: ServedSession) -> AsyncIterator[openai.AsyncOpenAI]:
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    async with openai.AsyncOpenAI(
        base_url=session.base_url, api_key=session.api_key, http_client=http, max_retries=0
    ) as made:
        yield made


@pytest.fixture
async def claude(session: ServedSession) -> AsyncIterator[anthropic.AsyncAnthropic]:
    http = anthropic.DefaultAsyncHttpxClient(trust_env=False)
    url = session.base_url.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=url, api_key=session.api_key, http_client=http, max_retries=0) as made:
        yield made


def exact(session: ServedSession, engine: ScriptedEngine) -> None:
    """Every call went on from the very tokens that were sampled before: all is one line."""
    (sequence,) = session.recorder.sequences
    for request, chunk in zip(engine.requests, session.recorder.chunks, strict=True):
        assert request.token_ids == sequence.token_ids[: chunk.start]


# --- chat completions


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


async def test_errors_are_those_that_clients_know(
    chat: openai.AsyncOpenAI,
    claude: anthropic.AsyncAnthropic,
    session: ServedSession,
    engine: ScriptedEngine,
    endpoint: ServedSessions,
) -> None:
    messages: list[Any] = [{"role": "user", "content": "go"}]
    engine.error = EngineError("The engine is out of memory.")
    with pytest.raises(openai.InternalServerError, match="out of memory"):
        await chat.chat.completions.create(model="m", messages=messages)
    with pytest.raises(anthropic.APIStatusError, match="out of memory") as told:
        await claude.messages.create(model="m", max_tokens=9, messages=messages)
    assert (told.value.status_code, told.value.body["error"]["type"]) == (503, "overloaded_error")  # type: ignore[index]
    engine.error = None
    long: list[Any] = [{"role": "user", "content": "x" * 9000}]
    with pytest.raises(openai.BadRequestError, match="leaves no room") as context:
        await chat.chat.completions.create(model="m", messages=long)
    assert context.value.code == "context_length_exceeded"
    with pytest.raises(anthropic.BadRequestError, match="leaves no room"):
        await claude.messages.create(model="m", max_tokens=9, messages=long)
    image: Any = {"type": "image", "source": {"type": "url", "url": "http://x"}}
    with pytest.raises(anthropic.BadRequestError, match="only text is supported"):
        await claude.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": [image]}])
    with pytest.raises(openai.NotFoundError, match=r"GET .*/v1/files"):
        await chat.files.list()
    endpoint.close(session)
    with pytest.raises(openai.AuthenticationError):
        await chat.chat.completions.create(model="m", messages=messages)
    with pytest.raises(anthropic.AuthenticationError):
        await claude.messages.create(model="m", max_tokens=9, messages=messages)
    assert not session.recorder.chunks


# --- Responses


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


# --- Anthropic messages


async def test_messages_with_tools_is_one_line_of_tokens(
    claude: anthropic.AsyncAnthropic, session: ServedSession, engine: ScriptedEngine
) -> None:
    engine.texts = [TWO, "done"]
    system: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "go", "cache_control": {"type": "ephemeral"}}]}
    ]
    tools = [ANTHROPIC_TOOL, {"type": "web_search_20250305", "name": "web_search"}]
    first = await claude.messages.create(model="m", max_tokens=999, system=system, messages=messages, tools=tools)
    assert (first.stop_reason, [block.type for block in first.content]) == (
        "tool_use",
        ["text", "tool_use", "tool_use"],
    )
    messages.append({"role": "assistant", "content": [block.model_dump() for block in first.content]})
    results = [
        {
            "type": "tool_result",
            "tool_use_id": block.id,
            "content": [{"type": "text", "text": "out"}],
            "is_error": False,
        }
        for block in first.content
        if block.type == "tool_use"
    ]
    messages.append({"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]})
    messages.append({"role": "system", "content": "Mind the time."})
    second = await claude.messages.create(model="m", max_tokens=999, system=system, messages=messages, tools=tools)
    assert (second.stop_reason, second.content[0].text) == ("end_turn", "done")  # type: ignore[union-attr]
    exact(session, engine)


@pytest.mark.parametrize("text", [LONG, TWO, ""])
async def test_a_stream_of_messages_says_what_the_whole_says(
    claude: anthropic.AsyncAnthropic, engine: ScriptedEngine, text: str
) -> None:
    engine.texts = [text, text]
    ask: dict[str, Any] = {
        "model": "m",
        "max_tokens": 4000,
        "messages": [{"role": "user", "content": "go"}],
        "tools": [ANTHROPIC_TOOL],
    }
    whole = await claude.messages.create(**ask)
    async with claude.messages.stream(**ask) as stream:
        final = await stream.get_final_message()
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    contents = [
        [block.model_dump(exclude={"id"}, exclude_none=True) for block in made.content] for made in (final, whole)
    ]
    for content in contents:
        for block in content:
            block.pop("parsed_output", None)
    assert contents[0] == contents[1]


async def test_stop_sequences_and_counts(
    claude: anthropic.AsyncAnthropic, session: ServedSession, engine: ScriptedEngine
) -> None:
    messages: list[Any] = [{"role": "user", "content": "go"}]
    counted = await claude.messages.count_tokens(model="m", messages=messages)
    assert session.recorder.chunks == ()
    engine.texts = ["ab END cd"]
    made = await claude.messages.create(model="m", max_tokens=99, messages=messages, stop_sequences=["END"])
    assert (made.stop_reason, made.stop_sequence, made.content[0].text) == ("stop_sequence", "END", "ab ")  # type: ignore[union-attr]
    assert made.usage.input_tokens == counted.input_tokens
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.head(session.base_url.removesuffix("/v1") + "/")).status_code == 200


# --- thoughts

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


# --- agents that behave badly


@pytest.mark.parametrize("stream", [False, True])
async def test_who_hangs_up_ends_the_generation(session: ServedSession, engine: ScriptedEngine, stream: bool) -> None:
    engine.wait = asyncio.Event()
    body = {"messages": [{"role": "user", "content": "go"}], "stream": stream}
    headers = {"Authorization": f"Bearer {session.api_key}"}
    async with httpx.AsyncClient(trust_env=False, timeout=0.5) as client:
        with pytest.raises(httpx.TimeoutException):
            await client.post(f"{session.base_url}/chat/completions", json=body, headers=headers)
    for _ in range(100):
        if engine.cancelled:
            break
        await asyncio.sleep(0.05)
    assert engine.cancelled == 1
    assert session.recorder.chunks == ()


async def test_a_slow_answer_keeps_its_stream_alive_and_its_error_is_an_event(
    chat: openai.AsyncOpenAI, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ale_endpoint.http.PATIENCE_S", 0.05)
    monkeypatch.setattr("ale_endpoint.http.ALIVE_S", 0.05)
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


@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b"\xff\xfe", 400),
        (b"[" * 100_000, 400),
        (b"{}", 400),
        (b"null", 400),
        (b'{"messages": 7, "input": 7}', 400),
        (b" " * ((16 << 20) + 1), 413),
    ],
)
async def test_nonsense_is_refused_in_each_apis_own_shape(
    session: ServedSession, path: str, body: bytes, status: int
) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.post(f"{session.base_url}/{path}", content=body, headers={"x-api-key": session.api_key})
    assert answer.status_code == status
    assert answer.json()["error"]["message"].endswith(".")
    assert (answer.json().get("type") == "error") == (path == "messages")


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
