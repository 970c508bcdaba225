"""What the tests of forwarding share: another server's model that is recorded and served to the official clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
from upstreams import Scripted, real

from ale_endpoint.forwarding import Forwarding
from ale_endpoint.http_app import build_app
from ale_endpoint.recording import RecordedCall, Recording, read_recording
from ale_endpoint.server import listener_at, serving
from ale_endpoint.upstream import Route, Upstream

GO: Any = [{"role": "user", "content": "go"}]


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
