"""What the server shows to operators and to strangers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from ale.errors import EngineError
from ale.registry.hooks import Hooks
from ale.session.session import Sessions
from ale.specs.engine import Sampling
from ale_endpoint.serving.app import build_serving_app
from ale_endpoint.serving.conversations import Conversations
from ale_endpoint.serving.served_policy import ServedPolicy
from ale_testing.fake_engines import TOKENIZER, ScriptedEngine

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


class PooledEngine(ScriptedEngine):
    """An engine with the metrics of a pool of replicas."""

    serving = 2.0

    def metrics(self) -> dict[str, float]:
        return {"sampled_tokens": 7.0, "vllm 0/use": 0.5, "replicas_serving": self.serving}


@asynccontextmanager
async def client_of(engine: ScriptedEngine, key: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
    conversations = Conversations(Sessions(TOKENIZER, engine, Hooks()), engine.max_context)
    policy = ServedPolicy(conversations, Sampling(max_tokens=64), ["tiny"], key)
    transport = httpx.ASGITransport(build_serving_app(policy, engine))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield client


async def test_health_is_the_engines() -> None:
    engine = PooledEngine()
    async with client_of(engine, key="secret") as client:
        assert (await client.get("/health")).status_code == 200
        engine.serving = 0.0
        lost = await client.get("/health")
    assert (lost.status_code, lost.json()["error"]) == (503, "None of the engine's replicas serves.")


async def test_metrics_are_text_for_prometheus() -> None:
    engine = PooledEngine(["one", "two"])
    async with client_of(engine) as client:
        for _ in range(2):
            assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        engine.error = EngineError("The engine is gone.")
        assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 503
        assert (await client.post("/v1/chat/completions", json={**CHAT, "temperature": 9})).status_code == 400
        assert (await client.post("/v1/chat/completions", content=b"{")).status_code == 400
        lines = (await client.get("/metrics")).text.splitlines()
    for line in (
        'ale_serving_calls_total{outcome="answered"} 2',
        'ale_serving_calls_total{outcome="failed"} 1',
        'ale_serving_calls_total{outcome="refused"} 2',
        "ale_serving_calls_running 0.0",
        "ale_serving_conversations 1.0",
        "ale_engine_sampled_tokens 7.0",
        "ale_engine_vllm_0_use 0.5",
    ):
        assert line in lines


async def test_strangers_learn_nothing_where_a_key_is_required() -> None:
    async with client_of(PooledEngine(["one"] * 3), key="secret") as client:
        for path in ("/metrics", "/v1/models", "/v1/models/tiny", "/nothing"):
            refused = await client.get(path)
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages"):
            assert (await client.post(path, json=CHAT)).status_code == 401
        for headers in ({"authorization": "Bearer secret"}, {"x-api-key": "secret:me"}):
            models = await client.get("/v1/models", headers=headers)
            assert [model["id"] for model in models.json()["data"]] == ["tiny"]
            assert (await client.get("/metrics", headers=headers)).status_code == 200
            assert (await client.post("/v1/chat/completions", json=CHAT, headers=headers)).status_code == 200
