"""Errors of the endpoint reach the client in each API's own shape."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import openai
import pytest
from served_sessions import ServedSession, ServedSessions

from ale.errors import EngineError
from ale_testing.fake_engines import ScriptedEngine


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
