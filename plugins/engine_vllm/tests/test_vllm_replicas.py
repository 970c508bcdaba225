"""Two real servers of vLLM behind one engine: one is killed, and no request notices."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.forked_server import IMPORTS, forking_python

from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import DriverContext
from ale.specs.engine import FolderTicket, PolicyVersion
from ale_engines.server.python_environments import find_python
from ale_testing.recording_channel import RecordingChannel
from ale_vllm import VllmEngine

from .conftest import ModelOf, logprobs_of, request

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("vllm"),
    pytest.mark.skipif(
        find_python("vllm", "cpu") is None,
        reason="vLLM's environment is not installed: `ale engine install vllm --cpu`",
    ),
]


def runs(pid: int | None) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.fixture
def forking() -> Iterator[Path]:
    """A Python for three servers, which imports vLLM once."""
    python = find_python("vllm", "cpu")
    assert python is not None
    with forking_python(python, IMPORTS["vllm"]) as forking:
        yield forking


async def test_a_killed_server_of_two_is_replaced_and_no_request_is_lost(
    model_of: ModelOf, tmp_path: Path, forking: Path
) -> None:
    channel = RecordingChannel()
    settings = {"replicas": 2, "threads": 1, "max_batch": 4, "max_context": 160, "device": "cpu"}
    config = VllmEngine.Config.model_validate({**settings, "python": forking})
    async with VllmEngine(config, DriverContext(run_dir=tmp_path, channel=channel)) as engine:
        await engine.load_model(model_of(True, 0), byte_tokenizer())
        await engine.load_weights(PolicyVersion(1, FolderTicket(model_of(True, 1))))
        victim, other = engine.replicas
        assert (victim.version, other.version, engine.version) == (1, 1, 1)
        assert victim.process is not None
        assert victim.process.pid is not None
        pids = [replica.process.pid for replica in (victim, other) if replica.process is not None]
        prompts = [(i, i + 1) for i in range(24)]
        running = [asyncio.ensure_future(engine.generate(request(prompt, max_tokens=150))) for prompt in prompts]
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        os.kill(victim.process.pid, signal.SIGKILL)
        results = await asyncio.gather(*running)
        assert {len(result.token_ids) for result in results} == {150}
        assert {version for result in results for version in result.versions} == {1}
        assert engine.metrics()["interruptions"] > 0
        for prompt, result in zip(prompts, results, strict=True):
            assert list(result.logprobs) == pytest.approx(logprobs_of(model_of(True, 1), prompt, result), abs=1e-3)
        while engine.metrics()["replicas_serving"] < 2:  # noqa: ASYNC110 - a figure, not an event
            await asyncio.sleep(0.05)
        again = await victim.generate(request())
        assert set(again.versions) == {1}
        assert list(again.logprobs) == pytest.approx(logprobs_of(model_of(True, 1), (3, 4, 5, 6), again), abs=1e-3)
        pids += [victim.process.pid]
    notes = [data["text"] for kind, data in channel.events if kind == "note"]
    assert any("vllm 0 was ended by signal 9" in text for text in notes)
    assert "vllm 0 serves again, with version 1." in notes
    assert not any(map(runs, pids))
