"""A node is lost in the middle of a request: the answer goes on at an engine of another node, and the trajectory is
whole."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.ray_nodes import ENVIRONMENT, connected_nodes

os.environ |= ENVIRONMENT
pytest.importorskip("ray")

from ale.messages import Message
from ale.registry.hooks import Hooks
from ale.session.session import Sessions
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale.specs.engine import FolderTicket, PolicyVersion, Sampling
from ale_engines.pool.engines import Engines
from ale_ray import engine_calls
from ale_ray.actor_calls import ask
from ale_ray.engine_actor import EngineSpec
from ale_ray.engine_replica import RayReplica
from ale_testing.processes import with_argument
from ale_testing.tiny_model import write_tiny_model

CONTEXT, TOKENS = 2048, 1500
"""So long that the node is lost while the answer is sampled, on any machine."""
NEVER = 1 << 20
"""A stop token that no model has."""


@pytest.fixture
def nodes() -> Iterator[tuple[str, str]]:
    """The node of this process, and another one."""
    with connected_nodes(2, cpus=2):
        import ray

        here = ray.get_runtime_context().get_node_id()
        (other,) = (node["NodeID"] for node in ray.nodes() if node["NodeID"] != here)
        yield here, other


def engine_on(node: str, number: int) -> RayReplica:
    """An engine on a node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    choice = PluginChoice(use="torch", settings={"threads": 1, "max_batch": 2, "max_context": CONTEXT})
    spec = EngineSpec(f"torch {number}", number, choice, DriverContext(seed=1), str, Path.cwd())
    options: dict[str, Any] = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0, "max_concurrency": 100}
    options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=False)
    return RayReplica(spec, options, 120.0, print, lambda engine: None)


def lose(node: str, *actors: int) -> None:
    """Kill a node: its raylet, and the processes of its actors."""
    (raylet,) = with_argument(f"--node_id={node}")
    for pid in (raylet, *actors):
        os.kill(pid, signal.SIGKILL)


async def sampled_by(engine: RayReplica) -> float:
    metrics, _ = await ask(engine.name, engine.actor.state.remote())
    return float(metrics["sampled_tokens"])


def logprobs_of(folder: Path, tokens: Sequence[int], start: int) -> list[float]:
    """The log-probability of each token from `start` on after those before it, by transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(folder)(torch.tensor([tokens])).logits[0].float()
    found = torch.log_softmax(logits, -1)[start - 1 : -1].gather(-1, torch.tensor(tokens[start:])[:, None])[:, 0]
    return [float(value) for value in found]


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    """Two versions of a model with a long context."""
    folders = [tmp_path / "0", tmp_path / "1"]
    for seed, folder in enumerate(folders):
        write_tiny_model(folder, seed)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    return folders


async def test_an_answer_whose_node_is_lost_goes_on_at_another_one_and_its_trajectory_is_whole(
    nodes: tuple[str, str], models: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_calls, "FOLLOW_S", 0.05)
    here, other = nodes
    doomed, left = engine_on(other, 0), engine_on(here, 1)
    tokenizer = write_tiny_model(models[0].parent / "tokenizer")
    async with Engines([doomed, left], print) as pool, asyncio.timeout(200):
        assert (doomed.facts.node, left.facts.node) == (other, here)
        await pool.load_model(models[0], tokenizer)
        sampling = Sampling(max_tokens=TOKENS, stop_token_ids=(NEVER,), seed=5)
        session = Sessions(tokenizer, pool, Hooks()).open("s", sampling, max_calls=1, max_context=CONTEXT)
        answering = asyncio.ensure_future(session.chat([Message("user", "go")]))
        while not await sampled_by(doomed):  # noqa: ASYNC110 - other processes have no events
            await asyncio.sleep(0.01)
        await doomed.pause()  # in the middle, where it has a number of tokens that is known
        before = int(await sampled_by(doomed))
        await pool.load_weights(PolicyVersion(1, FolderTicket(models[1])))
        (known,) = doomed._calls._sampled.values()
        while len(known) < before:  # noqa: ASYNC110 - it is asked for each `FOLLOW_S`
            await asyncio.sleep(0.01)
        lose(other, doomed.facts.pid)
        await answering
        assert pool.metrics()["interruptions"] == 1
        (chunk,), (sequence,) = session.recorder.chunks, session.recorder.sequences
        assert len(chunk) == len(chunk.logprobs) == TOKENS
        assert 0 < before < TOKENS
        assert chunk.versions == (0,) * before + (1,) * (TOKENS - before)
        first, whole = sequence.token_ids[: chunk.start + before], sequence.token_ids[: chunk.end]
        assert chunk.logprobs[:before] == pytest.approx(logprobs_of(models[0], first, chunk.start), abs=1e-4)
        assert chunk.logprobs[before:] == pytest.approx(logprobs_of(models[1], whole, len(first)), abs=1e-4)
