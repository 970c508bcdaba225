"""The endpoint over HTTP, as an OpenAI client sees it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import httpx
import pytest

from ale.endpoint.http import serve
from ale.endpoint.session import EndpointSession, ModelEndpoint
from ale.endpoint.tokenizer import byte_tokenizer
from ale.errors import ConfigError, EngineError
from ale.hooks import Hooks
from ale.specs.driver import DriverContext, PluginConfig
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine, Sampling

TOOL = {
    "type": "function",
    "function": {"name": "shell", "parameters": {"type": "object", "properties": {"command": {}}}},
}


class Echo(InferenceEngine):
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
async def endpoint() -> AsyncIterator[ModelEndpoint]:
    model = ModelEndpoint(byte_tokenizer(), Echo(PluginConfig(), DriverContext()), Hooks())
    async with serve(model):
        yield model


@pytest.fixture
def session(endpoint: ModelEndpoint) -> EndpointSession:
    return endpoint.open("e1", Sampling(), max_calls=3, max_context=999)


async def post(session: EndpointSession, key: str | None = None, **body: object) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key or session.api_key}"}
    async with httpx.AsyncClient(base_url=session.base_url, trust_env=False) as client:
        return await client.post("/chat/completions", json=body, headers=headers)


USER = [{"role": "user", "content": "hi"}]


async def test_an_agent_talks_and_every_token_is_recorded(session: EndpointSession) -> None:
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
    endpoint: ModelEndpoint, session: EndpointSession
) -> None:
    assert (await post(session, key="guess", messages=USER)).status_code == 401
    url, key = session.base_url, session.api_key
    endpoint.close(session)
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
        ({"messages": USER, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "none of the tools"),
        ({"messages": USER, "tools": [{"type": "web"}]}, r"tools\[0\] must be a function tool"),
    ],
)
async def test_bad_requests_are_answered_with_a_sentence(
    session: EndpointSession, body: dict[str, object], sentence: str
) -> None:
    answer = await post(session, **body)
    assert answer.status_code == 400

    assert re.search(sentence, answer.json()["error"]["message"])
    assert not session.recorder.chunks


async def test_a_spent_budget_is_final_and_an_engine_fault_is_worth_a_retry(
    endpoint: ModelEndpoint, session: EndpointSession, monkeypatch: pytest.MonkeyPatch
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


def test_a_run_without_http_says_so() -> None:
    model = ModelEndpoint(byte_tokenizer(), Echo(PluginConfig(), DriverContext()), Hooks())
    with pytest.raises(ConfigError, match=r"endpoint\.http=true"):
        _ = model.open("s", Sampling(), max_calls=1, max_context=9).base_url
