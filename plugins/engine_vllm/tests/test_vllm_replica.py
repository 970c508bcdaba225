"""What one server of vLLM is asked, and what its answers mean; the server is in the test."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from safetensors.torch import load_file

from ale.errors import EngineError
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import DriverContext
from ale.specs.engine import PolicyVersion
from ale_engines.server.replica import SILENCE_S
from ale_engines.server.settings import ServerSettings
from ale_engines.weights import fingerprint
from ale_torch.weights import GlooTicket, IpcTicket, TensorSpec
from ale_torch.weights.checksums import sum_weights
from ale_vllm.replica import VllmReplica

from .conftest import ModelOf, request


class FakeVllm:
    """Answers each route with `answers`, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.answers: dict[str, Any] = {
            "info": {"release": "0.32.0", "dtype": "float32", "max_context": 4096, "silent_s": 0.0}
        }

    async def answer(self, request: web.Request) -> web.Response:
        name = request.path.rpartition("/")[2]
        self.asked.append((name, json.loads(await request.read() or b"null")))
        return web.json_response(self.answers.get(name))

    def names(self) -> list[str]:
        return [name for name, _ in self.asked]


@pytest.fixture
def server() -> FakeVllm:
    return FakeVllm()


@pytest_asyncio.fixture
async def replica(server: FakeVllm, model_of: ModelOf) -> AsyncIterator[VllmReplica]:
    """A replica at the server's URL, which has the model of seed 0; it takes weights by every transport."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    settings = ServerSettings.model_validate({"url": f"http://127.0.0.1:{runner.addresses[0][1]}"})
    server.answers["fingerprint"] = fingerprint.of_folder(model_of(True, 0), "float32", tied=True)
    async with VllmReplica(settings, DriverContext(seed=1)) as made:
        await made.load_model(model_of(True, 0), byte_tokenizer())
        made.transports = ("folder", "gloo", "ipc")
        yield made
    await runner.cleanup()


async def test_it_is_alive_while_its_engine_is_busy_and_not_for_ever(replica: VllmReplica, server: FakeVllm) -> None:
    server.answers["info"]["silent_s"] = SILENCE_S - 1
    await replica.check()
    server.answers["info"]["silent_s"] = SILENCE_S + 1
    with pytest.raises(EngineError, match="has not answered its server for 301 s"):
        await replica.check()


async def test_each_request_has_a_seed(replica: VllmReplica, server: FakeVllm) -> None:
    server.answers["generate"] = {"token_ids": [1], "logprobs": [-1.0], "versions": [["0", 1]], "finish_reason": "stop"}
    for seed in (7, None, None):
        await replica.generate(request(seed=seed))
    seeds = [body["sampling"]["seed"] for name, body in server.asked if name == "generate"]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3


async def test_what_it_serves_is_compared_with_the_sums_of_the_trainer(
    replica: VllmReplica, server: FakeVllm, model_of: ModelOf
) -> None:
    """Whatever the server received."""
    weights = load_file(model_of(True, 1) / "model.safetensors")
    tensors = tuple(TensorSpec(name, "float32", tuple(tensor.shape)) for name, tensor in weights.items())
    policy = PolicyVersion(1, GlooTicket("127.0.0.1", 1, 1, tensors, sum_weights(weights)))
    with pytest.raises(EngineError, match=r"it serves others: model\.embed_tokens\.weight"):
        await replica.load_weights(policy)
    server.answers["fingerprint"] = fingerprint.of_folder(model_of(True, 1), "float32", tied=True)
    await replica.load_weights(policy)
    assert replica.version == 1


async def test_ipc_between_two_gpus_is_refused_before_the_server_is_touched(
    replica: VllmReplica, server: FakeVllm, model_of: ModelOf
) -> None:
    weights = load_file(model_of(True, 0) / "model.safetensors")
    server.answers["gpus"] = ["gpu-b"]
    sentence = r"vllm 0 computes on GPU gpu-b and the trainer on GPU gpu-a.*CUDA_VISIBLE_DEVICES.*trainer\.device"
    with pytest.raises(EngineError, match=sentence):
        await replica.load_weights(PolicyVersion(1, IpcTicket(1, "gpu-a", b"", sum_weights(weights))))
    assert "open_handles" not in server.names()
    await replica.check()
    await replica.load_weights(PolicyVersion(1, IpcTicket(1, "gpu-b", b"", sum_weights(weights))))
    assert "open_handles" in server.names()
