"""`ale serve` as a user runs it: with the engine `torch`, a model of random weights, and the APIs' official clients."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from support.command_line import ale

from .conftest import READY

Serve = Callable[..., AbstractContextManager[Any]]
ONE_THREAD = "engine.threads=1"
SHORT = "rollout.max_tokens=12"
HELLO: Any = [{"role": "user", "content": "hello"}]
RUN = """
name: tiny
run_dir: {runs}
model: {{scratch: {{hidden_size: 32, layers: 1, heads: 2, kv_heads: 1, vocab_size: 400, max_length: 512}}}}
tasks: {{use: bash, families: [write]}}
engine: {{use: torch, threads: 1, max_batch: 4}}
trainer: {{use: torch, threads: 1}}
algorithm: {{use: ipa, group_size: 2}}
rollout: {{concurrency: 4, max_calls: 2, max_tokens: 16, max_context: 512}}
sft: {{demonstrations: {{count: 6, keep_failed: true}}, steps: 2, batch_size: 4}}
rl: {{steps: 2, prompts_per_step: 2, checkpoint_every: 1}}
eval: null
"""


async def test_official_clients_of_three_apis_are_answered_whole_and_in_streams(serving: Serve, model: Path) -> None:
    with serving(model, "--port", "0", ONE_THREAD, "--set", SHORT) as served:
        served.wait_until_ready()
        async with openai.AsyncOpenAI(base_url=f"{served.origin}/v1", api_key="me", max_retries=0) as client:
            assert [found.id async for found in client.models.list()] == ["tiny"]
            chat = await client.chat.completions.create(model="tiny", messages=HELLO, temperature=0)
            assert chat.usage is not None
            assert 0 < chat.usage.completion_tokens <= 12
            stream = await client.chat.completions.create(model="tiny", messages=HELLO, temperature=0, stream=True)
            pieces = [event.choices[0].delta.content or "" async for event in stream]
            assert "".join(pieces) == chat.choices[0].message.content, "greedy answers are the same, streamed or not"
            response = await client.responses.create(model="tiny", input="hello", temperature=0, store=False)
            assert response.output_text == chat.choices[0].message.content
        async with anthropic.AsyncAnthropic(base_url=served.origin, api_key="me", max_retries=0) as claude:
            message = await claude.messages.create(model="tiny", messages=HELLO, max_tokens=5)
            assert 0 < message.usage.output_tokens <= 5
            async with claude.messages.stream(model="tiny", messages=HELLO, max_tokens=5) as events:
                assert (await events.get_final_message()).role == "assistant"
            counted = await claude.messages.count_tokens(model="tiny", messages=HELLO)
            assert counted.input_tokens == message.usage.input_tokens
        assert served.end() == 0
    assert "ended: calls 5 answered" in served.printed


def test_the_printed_call_can_be_pasted_and_the_key_is_nowhere_else(serving: Serve, model: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    key = "a-long-secret-key"
    with serving(
        model, "--port", "0", "--host", "0.0.0.0", "--api-key", "POLICY_KEY", ONE_THREAD, POLICY_KEY=key
    ) as it:
        it.wait_until_ready()
        environment = {**os.environ, "POLICY_KEY": key}
        done = subprocess.run(["sh", "-c", it.curl], env=environment, capture_output=True, text=True, timeout=60)
        assert '"object":"chat.completion"' in done.stdout, done.stderr
        assert httpx.get(f"{it.origin}/v1/models", timeout=60).status_code == 401
        assert httpx.get(f"{it.origin}/health", timeout=60).json() == {"status": "ok"}
        assert key not in Path(f"/proc/{it.process.pid}/cmdline").read_text()
        assert it.end(signal.SIGTERM) == 0
    assert key not in it.printed


async def test_a_signal_cuts_off_what_is_running_and_leaves_nothing(serving: Serve, model: Path) -> None:
    with serving(model, "--port", "0", ONE_THREAD) as served:
        served.wait_until_ready()
        async with httpx.AsyncClient(base_url=served.origin, timeout=60) as client:
            body = {"messages": HELLO, "n": 32}
            calls = [asyncio.create_task(client.post("/v1/chat/completions", json=body)) for _ in range(4)]
            while "calls_running 0" in (await client.get("/metrics")).text:
                continue
            assert await asyncio.to_thread(served.end) == 0
            for answer in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(answer, httpx.Response | httpx.HTTPError)
    assert "ended: " in served.printed


def test_a_signal_while_the_policy_is_loaded_ends_it_too(serving: Serve, model: Path) -> None:
    with serving(model, "--port", "0", ONE_THREAD) as served:
        assert served.process.stdout is not None
        assert served.process.stdout.readline().startswith("loading ")
        code = served.end()
        assert code == (0 if READY in served.printed else 130)  # it may have been ready before the signal came


def test_a_web_page_cannot_use_it_without_a_key(serving: Serve, model: Path) -> None:
    with serving(model, "--port", "0", ONE_THREAD, SHORT) as served:
        served.wait_until_ready()
        body = {"messages": HELLO}
        with httpx.Client(base_url=served.origin, timeout=60) as client:
            foreign = client.post("/v1/chat/completions", json=body, headers={"origin": "http://evil.test"})
            rebound = client.get("/metrics", headers={"host": "evil.test"})
        assert (foreign.status_code, rebound.status_code) == (401, 400)
        assert served.end() == 0


def test_mistakes_are_one_sentence(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLICY_KEY", "")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, sentence in (
            ((model, "--port", port), f"Nothing can listen at 127.0.0.1, port {port}: Address already in use"),
            ((model, "--host", "0.0.0.0"), "--host 0.0.0.0 lets others use the policy"),
            ((model, "--api-key", "sk-123"), "--api-key takes the name of an environment variable"),
            ((model, "--api-key", "POLICY_KEY"), "--api-key names the environment variable POLICY_KEY"),
            ((model, "--engine", "torhc"), "there is no engine plugin 'torhc'. Did you mean 'torch'?"),
            ((tmp_path,), "is neither a run folder (it holds no config.yaml) nor a model folder"),
        ):
            done = ale("serve", *arguments)
            assert done.returncode == 2, done.stderr
            (line,) = done.stderr.splitlines()
            assert line.startswith("error: ")
            assert sentence in line


@pytest.mark.bwrap
@pytest.mark.slow
def test_a_run_serves_its_policy_and_its_checkpoints(serving: Serve, tmp_path: Path) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    file = tmp_path / "run.yaml"
    file.write_text(RUN.format(runs=tmp_path / "runs"))
    done = ale("run", file, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    for options, title in (((), "final policy of run"), (("--checkpoint", "1"), "policy at step 1 of run")):
        with serving(tmp_path / "run", "--port", "0", *options) as served:
            served.wait_until_ready()
            assert f"{title} with the engine torch" in served.printed
            answer = httpx.post(f"{served.origin}/v1/chat/completions", json={"messages": HELLO}, timeout=60).json()
            assert 0 < answer["usage"]["completion_tokens"] <= 16, "as long as in training"
            assert served.end() == 0
    refused = ale("serve", tmp_path / "run", "--checkpoint", "7")
    assert "It holds: final, sft, initial, step_1" in refused.stderr
