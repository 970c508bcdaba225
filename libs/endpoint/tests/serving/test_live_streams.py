"""A served policy's replies are streamed while they are sampled, in every API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anthropic
import httpx
import openai
import pytest

from ale.errors import EngineError
from ale.registry.hooks import Hooks
from ale.session.session import Sessions
from ale.specs.engine import GenerateRequest, Generation, Sampling
from ale_endpoint.server import listener_at, serving
from ale_endpoint.serving.app import build_serving_app
from ale_endpoint.serving.completions import Completions
from ale_endpoint.serving.conversations import Conversations
from ale_endpoint.serving.served_policy import ServedPolicy
from ale_testing.fake_engines import TOKENIZER, FakeEngine

CALL = '<tool_call>\n{"name": "shell", "arguments": {"command": "ls"}}\n</tool_call>'


class SlowEngine(FakeEngine):
    """Samples the first part of a text, and the rest when a test says `go_on`."""

    max_context = 8192

    def __init__(self, first: str, rest: str) -> None:
        super().__init__()
        self.first, self.rest = tuple(TOKENIZER.encode(first)), tuple(TOKENIZER.encode(rest))
        self.go_on = asyncio.Event()
        self.error: Exception | None = None
        self.cancelled = False

    def sampled_so_far(self, request: GenerateRequest, after: int = 0) -> Generation:
        return self._generation(self.first[after:])

    async def generate(self, request: GenerateRequest) -> Generation:
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if self.error is not None:
            raise self.error
        return self._generation((*self.first, *self.rest, *TOKENIZER.stop_token_ids))

    def _generation(self, ids: tuple[int, ...]) -> Generation:
        return Generation(ids, (-0.1,) * len(ids), (0,) * len(ids), "stop")


@asynccontextmanager
async def origin_of(engine: SlowEngine) -> AsyncIterator[str]:
    policy = ServedPolicy(
        Conversations(Sessions(TOKENIZER, engine, Hooks()), engine.max_context), Sampling(max_tokens=4000), ["tiny"]
    )
    with listener_at("127.0.0.1", 0) as listener:
        completions = Completions(engine, TOKENIZER, Sampling(max_tokens=4000), engine.max_context)
        async with serving(build_serving_app(policy, engine, completions), listener):
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"


BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": [{"role": "user", "content": "go"}]},
    "responses": {"input": "go"},
    "messages": {"max_tokens": 999, "messages": [{"role": "user", "content": "go"}]},
}


def texts_of(line: str) -> tuple[str, str]:
    """The thoughts and the text of one event."""
    data = json.loads(line.removeprefix("data: ")) if line.startswith("data: {") else {}
    delta = (data.get("choices") or [{}])[0].get("delta") or data.get("delta") or {}
    if isinstance(delta, str):
        return (delta, "") if "reasoning" in data["type"] else ("", delta)
    return delta.get("reasoning_content") or delta.get("thinking") or "", delta.get("content") or delta.get(
        "text"
    ) or ""


@pytest.mark.parametrize("path", BODIES)
async def test_pieces_go_out_before_the_reply_is_complete(path: str) -> None:
    engine = SlowEngine("<think>hm, so\n</think>\n\nIt is é and <tool", "s> and more")
    async with AsyncExitStack() as stack:
        origin = await stack.enter_async_context(origin_of(engine))
        client = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=30))
        body = {**BODIES[path], "stream": True}
        answer = await stack.enter_async_context(client.stream("POST", f"{origin}/v1/{path}", json=body))
        thought = text = ""
        async for line in answer.aiter_lines():
            more = texts_of(line)
            thought, text = thought + more[0], text + more[1]
            if text == "It is é and" and not engine.go_on.is_set():
                assert thought == "hm, so", "what may be the beginning of a call waits"
                engine.go_on.set()
    assert (thought, text) == ("hm, so", "It is é and <tools> and more")


@pytest.mark.parametrize("rest", [CALL, " and that", ""])
async def test_official_clients_read_the_same_from_a_live_stream(rest: str) -> None:
    first = "<think>t</think>\n\nI look"
    tools: Any = [{"type": "function", "function": {"name": "shell", "parameters": {"type": "object"}}}]
    for api in ("chat", "responses", "anthropic"):
        engine = SlowEngine(first, rest)
        asyncio.get_running_loop().call_later(0.2, engine.go_on.set)
        async with AsyncExitStack() as stack:
            origin = await stack.enter_async_context(origin_of(engine))
            if api == "anthropic":
                own_http = await stack.enter_async_context(anthropic.DefaultAsyncHttpxClient(trust_env=False))
                claude = anthropic.AsyncAnthropic(base_url=origin, api_key="k", http_client=own_http)
                own: Any = [{"name": "shell", "input_schema": {"type": "object"}}]
                async with claude.messages.stream(
                    max_tokens=99, model="m", tools=own, messages=BODIES["messages"]["messages"]
                ) as events:
                    blocks = [block.model_dump() for block in (await events.get_final_message()).content]
                text = "".join(block.get("text") or "" for block in blocks)
                called = [block["input"] for block in blocks if block["type"] == "tool_use"]
                assert blocks[0]["thinking"] == "t"
            elif api == "responses":
                http = await stack.enter_async_context(openai.DefaultAsyncHttpxClient(trust_env=False))
                chat = openai.AsyncOpenAI(base_url=f"{origin}/v1", api_key="k", http_client=http)
                flat: Any = [{"type": "function", **tools[0]["function"]}]
                async with chat.responses.stream(model="m", input="go", tools=flat) as items:
                    final = await items.get_final_response()
                text = final.output_text
                called = [json.loads(item.arguments) for item in final.output if item.type == "function_call"]
            else:
                http = await stack.enter_async_context(openai.DefaultAsyncHttpxClient(trust_env=False))
                chat = openai.AsyncOpenAI(base_url=f"{origin}/v1", api_key="k", http_client=http)
                asked: Any = BODIES["chat/completions"]["messages"]
                async with chat.chat.completions.stream(model="m", messages=asked, tools=tools) as chunks:
                    message = (await chunks.get_final_completion()).choices[0].message
                text, calls = message.content or "", message.tool_calls or []
                called = [json.loads(call.function.arguments) for call in calls]
        assert text == "I look" + ("" if rest == CALL else rest)
        assert called == ([{"command": "ls"}] if rest == CALL else [])


@pytest.mark.parametrize("path", BODIES)
async def test_a_failure_has_its_status_before_the_first_piece_and_is_an_event_after_it(path: str) -> None:
    for first, status in (("", 503), ("It is so", 200)):
        engine = SlowEngine(first, "")
        engine.error = EngineError("The engine is out of memory.")
        asyncio.get_running_loop().call_later(0.2, engine.go_on.set)
        async with origin_of(engine) as origin, httpx.AsyncClient(trust_env=False) as client:
            answer = await client.post(f"{origin}/v1/{path}", json={**BODIES[path], "stream": True})
        assert (answer.status_code, "out of memory" in answer.text) == (status, True)


async def test_a_client_that_leaves_ends_the_generation() -> None:
    engine = SlowEngine("It is so", "")
    async with origin_of(engine) as origin:
        async with httpx.AsyncClient(trust_env=False) as client:
            body = {**BODIES["messages"], "stream": True}
            async with client.stream("POST", f"{origin}/v1/messages", json=body) as answer:
                async for line in answer.aiter_lines():
                    if texts_of(line)[1]:
                        break
        async with asyncio.timeout(30):
            while not engine.cancelled:  # noqa: ASYNC110 - the engine has no event
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("body", [{"prompt": "go", "n": 2}, {"prompt": ["go", "on"]}, {"prompt": "go", "echo": True}])
async def test_each_text_completion_goes_out_as_its_tokens_come(body: dict[str, Any]) -> None:
    engine = SlowEngine("It is <think>é and", " more. Never")
    choices = 1 if body.get("echo") else 2
    begins = ["go" * bool(body.get("echo")) + "It is <think>é and"] * choices
    texts, ends = [""] * choices, [""] * choices
    async with AsyncExitStack() as stack:
        origin = await stack.enter_async_context(origin_of(engine))
        client = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=30))
        asked = {**body, "max_tokens": 99, "stop": ".", "stream": True, "stream_options": {"include_usage": True}}
        answer = await stack.enter_async_context(client.stream("POST", f"{origin}/v1/completions", json=asked))
        async for line in answer.aiter_lines():
            data = json.loads(line.removeprefix("data: ")) if line.startswith("data: {") else {"choices": []}
            for choice in data["choices"]:
                texts[choice["index"]] += choice["text"]
                ends[choice["index"]] += choice["finish_reason"] or ""
            if texts == begins and not engine.go_on.is_set():
                assert ends == [""] * choices
                engine.go_on.set()
    assert texts == [f"{begin} more" for begin in begins]
    assert ends == ["stop"] * choices


async def test_a_text_completion_that_fails_has_its_status_or_says_so_in_the_stream() -> None:
    engine = SlowEngine("begun", "")
    engine.error = EngineError("the device is lost")
    async with AsyncExitStack() as stack:
        origin = await stack.enter_async_context(origin_of(engine))
        client = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=30))
        asked = {"prompt": "go", "stream": True}
        answer = await stack.enter_async_context(client.stream("POST", f"{origin}/v1/completions", json=asked))
        async for line in answer.aiter_lines():
            if "begun" in line:
                engine.go_on.set()
            elif "error" in line:
                break
        assert "the device is lost" in json.loads(line.removeprefix("data: "))["error"]["message"]
        refused = await client.post(f"{origin}/v1/completions", json={**asked, "suffix": "x"})
        assert (refused.status_code, "'suffix' is refused" in refused.text) == (400, True)
