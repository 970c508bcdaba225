"""Another server's model behind the endpoint's APIs, as the official clients see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from served_sessions import ServedSessions
from upstreams import CALL, Faulty, Scripted, fails, hangs, real, says

from ale.registry.hooks import Hooks
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import DriverContext
from ale.specs.engine import Sampling
from ale_endpoint.forwarding import Forwarding
from ale_endpoint.http import build_app
from ale_endpoint.recording import RecordedCall, Recording, read_recording
from ale_endpoint.replay import Replay
from ale_endpoint.server import listener_at, serving
from ale_endpoint.upstream import Route, Upstream
from ale_endpoint.upstream_engine import UpstreamEngine

PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "shell", "description": "Runs.", "parameters": PARAMETERS}}
RESPONSES_TOOL: Any = {"type": "function", "name": "shell", "parameters": PARAMETERS, "strict": False}
ANTHROPIC_TOOL: Any = {"name": "shell", "description": "Runs.", "input_schema": PARAMETERS}
GO: Any = [{"role": "user", "content": "go"}]
KEY = "sk-upstream-0123456789"


@asynccontextmanager
async def served(forwarding: Forwarding) -> AsyncIterator[str]:
    with listener_at("127.0.0.1", 0) as listener:
        async with serving(build_app(forwarding), listener):
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"


class World:
    """A recording, a real upstream, and what is served in front of it."""

    def __init__(self, stack: AsyncExitStack, folder: Path) -> None:
        self.path = folder / "calls.jsonl"
        self._stack = stack
        self.engine: Scripted

    async def open(self) -> None:
        session, self.engine = await self._stack.enter_async_context(real())
        self.key = session.api_key
        upstream = await self._stack.enter_async_context(
            Upstream([Route(session.base_url, key=session.api_key, key_from="K")], attempts=2, first_wait_s=0.01)
        )
        self.recording = self._stack.enter_context(Recording(self.path, upstream.redact))
        self.forwarding = Forwarding(upstream, recording=self.recording, models=("big",))
        self.origin = await self._stack.enter_async_context(served(self.forwarding))

    async def chat(self, key: str = "agent-one", origin: str | None = None) -> openai.AsyncOpenAI:
        client = openai.AsyncOpenAI(
            base_url=f"{origin or self.origin}/v1",
            api_key=key,
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
        )
        return await self._stack.enter_async_context(client)

    async def claude(self, key: str = "agent-two") -> anthropic.AsyncAnthropic:
        client = anthropic.AsyncAnthropic(
            base_url=self.origin,
            api_key=key,
            max_retries=0,
            http_client=anthropic.DefaultAsyncHttpxClient(trust_env=False),
        )
        return await self._stack.enter_async_context(client)

    def calls(self) -> list[RecordedCall]:
        return list(read_recording(self.path))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        made = World(stack, tmp_path)
        await made.open()
        yield made


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


async def test_keys_of_agents_are_kept_as_hashes_and_none_is_a_session_too(world: World) -> None:
    world.engine.texts = ["a", "b", "c"]
    await (await world.chat("secret-of-an-agent")).chat.completions.create(model="m", messages=GO)
    async with httpx.AsyncClient(trust_env=False) as plain:
        url = f"{world.origin}/v1/chat/completions"
        assert (await plain.post(url, json={"messages": GO})).status_code == 200
        page = await plain.post(url, json={"messages": GO}, headers={"Origin": "https://elsewhere.example"})
        assert page.status_code == 401, "a web page speaks for nobody"
    sessions = [c.session for c in world.calls()]
    assert sessions[0].startswith("s-")
    assert sessions[1] == "anonymous"
    assert "secret-of-an-agent" not in world.path.read_text()
    assert world.key not in world.path.read_text()


async def test_a_required_key_opens_a_session_for_each_name(world: World) -> None:
    forwarding = Forwarding(None, Replay([]), required_key="the-key")
    opened = [forwarding.by_key(key) for key in ("the-key", "the-key:one", "the-key:two")]
    assert len({session.id for session in opened if session is not None}) == 3
    for key in ("", "the-ke", "the-keys", "the-key-one", "other", "thé-key"):
        assert forwarding.by_key(key) is None, key


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
        async with httpx.AsyncClient(trust_env=False, timeout=0.5) as plain:
            with pytest.raises(httpx.ReadTimeout):
                await plain.post(f"{origin}/v1/chat/completions", json={"messages": GO})
        async with asyncio.timeout(5):
            await ended.wait()
        assert recording.lines == 0


async def test_an_agent_meets_the_same_world_in_a_replay(world: World, tmp_path: Path) -> None:
    async def agent(origin: str, key: str, task: str) -> list[str]:
        chat = await world.chat(key, origin)
        messages: list[Any] = [{"role": "user", "content": task}]
        said = []
        for _ in range(2):
            made = (await chat.chat.completions.create(model="m", messages=messages, tools=[CHAT_TOOL])).choices[0]
            said.append(made.message.content or "")
            messages.append(made.message.model_dump())
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": "out"} for call in made.message.tool_calls or []
            ]
        return said

    world.engine.texts = [f"one{CALL}", "end of one", f"two{CALL}", "end of two"]
    first, second = await agent(world.origin, "a", "first"), await agent(world.origin, "b", "second")
    assert (first, second) == (["one", "end of one"], ["two", "end of two"])
    with Recording(tmp_path / "again.jsonl") as again:
        replayed = Forwarding(None, Replay(world.calls()), again)
        async with served(replayed) as origin:
            found = await asyncio.gather(*(agent(origin, key, task) for key, task in (("x", "second"), ("y", "first"))))
            assert found == [second, first], "whatever order the requests come in"
            chat = await world.chat("z", origin)
            with pytest.raises(openai.NotFoundError, match="not in the recording; the nearest is call 0") as told:
                await chat.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "frist"}], tools=[CHAT_TOOL]
                )
        assert told.value.code == "not_recorded"
    assert len(Replay(read_recording(tmp_path / "again.jsonl"))) == 4, "a replay is recorded like anything else"


async def test_what_is_not_in_the_recording_is_forwarded(world: World) -> None:
    world.engine.texts = ["old", "new"]
    chat = await world.chat()
    await chat.chat.completions.create(model="m", messages=GO)
    replay = Replay(world.calls())
    both = Forwarding(world.forwarding._source, replay, world.recording, record_replayed=False)
    async with served(both) as origin:
        chat = await world.chat(origin=origin)
        said = [
            (await chat.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])).choices[0]
            for text in ("go", "else")
        ]
    assert [choice.message.content for choice in said] == ["old", "new"]
    assert both.counts == {"replayed": 1, "answered": 1}
    assert [c.request.messages[0].content for c in world.calls()] == ["go", "else"]


async def test_many_agents_at_once_are_told_apart(world: World) -> None:
    engine = world.engine
    engine.texts = [f"answer {i}" for i in range(40)]

    async def one(name: int) -> str | None:
        chat = await world.chat(f"agent-{name % 8}")
        made = await chat.chat.completions.create(model="m", messages=[{"role": "user", "content": f"go {name}"}])
        return made.choices[0].message.content

    said = await asyncio.gather(*(one(i) for i in range(40)))
    assert len(set(said)) == 40
    recorded = world.calls()
    assert {(c.session, c.number) for c in recorded} == {
        (session, number) for session in {c.session for c in recorded} for number in range(5)
    }
    by_request = {c.request.messages[0].content: c.answer.replies[0].message.content for c in recorded if c.answer}
    assert [by_request[f"go {i}"] for i in range(40)] == said


async def test_sessions_go_on_counting_in_a_recording_that_goes_on(world: World, tmp_path: Path) -> None:
    path = tmp_path / "more.jsonl"
    for texts in (["a", "b"], ["c"]):
        world.engine.texts = texts[:]
        with Recording(path) as recording:
            async with served(Forwarding(world.forwarding._source, recording=recording)) as origin:
                chat = await world.chat("same", origin)
                for _ in texts:
                    await chat.chat.completions.create(model="m", messages=GO)
    assert [c.number for c in read_recording(path)] == [0, 1, 2]


async def test_a_teacher_in_a_run_is_recorded_as_given_and_asked_only_what_the_run_allows() -> None:
    async with Faulty().up() as faulty:
        call = {"id": "c1", "function": {"name": "shell", "arguments": '{"command": "ls"}'}}
        unreadable = {"id": "c2", "function": {"name": "shell", "arguments": "ls"}}
        faulty.script = [
            says("I look.", tool_calls=[call]),
            says("one"),
            says("two"),
            says(None, tool_calls=[unreadable]),
        ]
        config = UpstreamEngine.Config(url=faulty.url, model="m", parameters={"temperature": 0.3})
        engine = UpstreamEngine(config, DriverContext())
        messages: Any = [*GO]
        tools: Any = [CHAT_TOOL]
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(engine)
            endpoint = await stack.enter_async_context(ServedSessions(byte_tokenizer(), engine, Hooks()))
            session = endpoint.open("e", Sampling(), max_calls=4, max_context=10)
            chat = await stack.enter_async_context(
                openai.AsyncOpenAI(
                    base_url=session.base_url,
                    api_key=session.api_key,
                    max_retries=0,
                    http_client=httpx.AsyncClient(trust_env=False),
                )
            )
            made = await chat.chat.completions.create(
                model="m", messages=messages, tools=tools, temperature=2, max_tokens=7
            )
            messages += [made.choices[0].message.model_dump(), {"role": "tool", "tool_call_id": "c1", "content": "out"}]
            both = await chat.chat.completions.create(model="m", messages=messages, tools=tools, n=2)
            assert {choice.message.content for choice in both.choices} == {"one", "two"}
            text = (
                (await chat.chat.completions.create(model="m", messages=messages, tools=tools))
                .choices[0]
                .message.content
            )
            assert text is not None
            assert "<tool_call>" in text
            faulty.script = [fails(404, "no such model"), fails(404, "no such model")]
            session.calls = 2
            with pytest.raises(openai.NotFoundError, match="no such model"):
                await chat.chat.completions.create(model="m", messages=messages, n=2)
            del faulty.bodies[4:]
            with pytest.raises(openai.BadRequestError, match="used its 4 model calls"):
                await chat.chat.completions.create(model="m", messages=messages)
        assert [(body["temperature"], body.get("max_tokens"), body.get("n")) for body in faulty.bodies] == [
            (0.3, 7, None),
            (0.3, None, None),
            (0.3, None, None),
            (0.3, None, None),
        ]
        assert [(c.sampled, c.error and c.error.kind) for c in session.recorder.chunks] == [
            (False, None),
            (False, None),
            (False, None),
            (False, "illegal_call"),
        ]
        line = session.recorder.sequences[0]
        assert byte_tokenizer().decode(line.token_ids).count("I look.") == 1


async def test_a_stream_that_waits_long_is_kept_alive_and_its_failure_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ale_endpoint.http.PATIENCE_S", 0.1)
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
