"""The endpoint over HTTP, as an OpenAI client sees it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import ExitStack

import httpx
import pytest
from served_sessions import ServedSession, ServedSessions

from ale.errors import EngineError
from ale.registry.hooks import Hooks
from ale.session.session import Sessions
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine, Sampling
from ale_endpoint.session_server import SessionServer

TOOL = {
    "type": "function",
    "function": {"name": "shell", "parameters": {"type": "object", "properties": {"command": {}}}},
}


class Echo(Driver, InferenceEngine):
    """Always answers with the same text."""

    max_context = 4096
    version = 5
    text = '<tool_call>\n{"name": "shell", "arguments": {"command": "ls"}}\n</tool_call>'

    async def load_model(self, folder: object, tokenizer: object) -> None: ...

    async def load_weights(self, policy: object) -> None: ...

    async def generate(self, request: GenerateRequest) -> Generation:
        tokenizer = byte_tokenizer()
        ids = (*tokenizer.encode(self.text), *tokenizer.stop_token_ids)
        return Generation(ids, (-0.1,) * len(ids), (5,) * len(ids), "stop")


@pytest.fixture
async def endpoint() -> AsyncIterator[ServedSessions]:
    model = ServedSessions(byte_tokenizer(), Echo(PluginConfig(), DriverContext()), Hooks())
    async with model:
        yield model


@pytest.fixture
def session(endpoint: ServedSessions) -> ServedSession:
    return endpoint.open("e1", Sampling(), max_calls=3, max_context=999)


async def post(session: ServedSession, key: str | None = None, **body: object) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key or session.api_key}"}
    async with httpx.AsyncClient(base_url=session.base_url, trust_env=False) as client:
        return await client.post("/chat/completions", json=body, headers=headers)


USER = [{"role": "user", "content": "hi"}]


async def test_an_agent_talks_and_every_token_is_recorded(session: ServedSession) -> None:
    first = (await post(session, model="policy", messages=USER, tools=[TOOL])).json()
    message = first["choices"][0]["message"]
    assert first["choices"][0]["finish_reason"] == "tool_calls"
    assert message["tool_calls"][0]["function"] == {"name": "shell", "arguments": '{"command": "ls"}'}
    answer = {
        "role": "tool",
        "tool_call_id": message["tool_calls"][0]["id"],
        "content": [{"type": "text", "text": "a"}],
    }
    second = (await post(session, messages=[*USER, message, answer], tools=[TOOL])).json()
    assert second["usage"]["prompt_tokens"] > first["usage"]["total_tokens"]
    (sequence,) = session.recorder.sequences
    assert [c.versions[0] for c in session.recorder.chunks] == [5, 5]
    assert len(sequence.token_ids) == second["usage"]["total_tokens"]


async def test_a_key_opens_its_own_session_only_while_it_lasts(
    endpoint: ServedSessions, session: ServedSession
) -> None:
    assert (await post(session, key="guess", messages=USER)).status_code == 401
    url = session.base_url
    with endpoint.server.open(session) as access:
        key = access.api_key
        assert (await post(session, key=key, messages=USER)).status_code == 200
    async with httpx.AsyncClient(trust_env=False) as client:
        late = await client.post(
            f"{url}/chat/completions", json={"messages": USER}, headers={"Authorization": f"Bearer {key}"}
        )
    assert late.status_code == 401
    assert late.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({}, "at least one message"),
        ({"messages": []}, "at least one message"),
        ({"messages": "hi"}, "'messages' must be a list, not a text"),
        ({"messages": ["x"]}, r"messages\[0\] must be an object"),
        ({"messages": [{"role": "king", "content": "x"}]}, r"messages\[0\].role is 'king'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "only text"),
        ({"messages": USER, "stream": "yes"}, "'stream' must be true or false, not a text"),
        ({"messages": USER, "n": 0}, "'n' must be at least 1"),
        ({"messages": USER, "n": 1.5}, "'n' must be a whole number"),
        ({"messages": USER, "max_tokens": True}, "'max_tokens' must be a whole number"),
        ({"messages": USER, "stop": [1]}, "'stop' must be a text or a list of texts"),
        ({"messages": USER, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "not among the tools"),
        ({"messages": USER, "tools": [{"type": "web"}]}, r"tools\[0\] must be a function tool"),
    ],
)
async def test_bad_requests_are_answered_with_a_sentence(
    session: ServedSession, body: dict[str, object], sentence: str
) -> None:
    answer = await post(session, **body)
    assert answer.status_code == 400

    assert re.search(sentence, answer.json()["error"]["message"])
    assert not session.recorder.chunks


async def test_a_spent_budget_is_final_and_an_engine_fault_is_worth_a_retry(
    endpoint: ServedSessions, session: ServedSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(request: GenerateRequest) -> Generation:
        raise EngineError("The engine is out of memory.")

    with monkeypatch.context() as patch:
        patch.setattr(endpoint.engine, "generate", fail)
        assert (await post(session, messages=USER)).status_code == 503
    for _ in range(2):
        assert (await post(session, messages=USER)).status_code == 200
    spent = await post(session, messages=USER)
    assert spent.status_code == 400
    assert "3 model calls" in spent.json()["error"]["message"]


async def test_the_key_of_one_session_is_nothing_to_another() -> None:
    server = SessionServer()
    model = Sessions(byte_tokenizer(), Echo(PluginConfig(), DriverContext()), Hooks())
    sessions = [model.open(f"s{i}", Sampling(), max_calls=1, max_context=99) for i in range(2000)]
    with ExitStack() as opened:
        keys = [opened.enter_context(server.open(session)).api_key for session in sessions]
        assert len(set(keys)) == 2000
        assert all(server.by_key(key) is session for key, session in zip(keys, sessions, strict=True))
        with server.open(sessions[7]) as access:
            assert server.by_key(access.api_key) is sessions[7]
        assert server.by_key(access.api_key) is None
        assert server.by_key(keys[7]) is sessions[7]
    assert server.by_key(keys[8]) is None
