"""Sessions with a scripted engine, the official clients that ask them, and another server's model that is served."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import anthropic
import openai
import pytest
from served_sessions import ServedSession, ServedSessions
from served_upstream import World

from ale.registry.hooks import Hooks
from ale.session.tokenizer import byte_tokenizer
from ale.specs.engine import Sampling
from ale_testing.fake_engines import ScriptedEngine


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


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        made = World(stack, tmp_path)
        await made.open()
        yield made
