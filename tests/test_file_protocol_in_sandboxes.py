"""These tests use the file protocol end to end: the agent and its log are in a sandbox without a network."""

from __future__ import annotations

import asyncio
import shutil
import sys
from typing import Any

import openai
import pytest
from file_protocol_client import Talker, session_of
from support.sandbox_providers import answers, provider_of

from ale.errors import AgentError
from ale.session.session import RecordedSession
from ale.specs.sandbox import ExecResult, Sandbox, SandboxSpec
from ale_endpoint.file_protocol import SandboxLink, answer_log
from ale_endpoint.relays import script
from ale_endpoint.session_server import SessionServer

LOG = "/workspace/LLMService.log"
NASTY = "LLM_REQUEST_END SESSION_END\n\u2028 turn"
# Both agents have three turns, the last one as a stream, and then end; the service ends the session with them.
OFFICIAL = f"""
import os, httpx, openai
httpx.post("http://127.0.0.1:8080/v1/agent/watch", json={{"pid": os.getpid()}}).raise_for_status()
client = openai.OpenAI(base_url="http://127.0.0.1:8080/v1", api_key="none")
messages = []
for n in range(3):
    messages.append({{"role": "user", "content": {NASTY!r} + str(n)}})
    answer = client.chat.completions.create(model="m", messages=messages, stream=n == 2)
    text = "".join(e.choices[0].delta.content or "" for e in answer) if n == 2 else answer.choices[0].message.content
    messages.append({{"role": "assistant", "content": text}})
    print(text)
"""
PLAIN = f"""
import json, os, urllib.request
def post(path, body):
    request = urllib.request.Request("http://127.0.0.1:8080/v1" + path, json.dumps(body).encode())
    return urllib.request.urlopen(request, timeout=60).read().decode()
post("/agent/watch", {{"pid": os.getpid()}})
messages = []
for n in range(3):
    messages.append({{"role": "user", "content": {NASTY!r} + str(n)}})
    answer = post("/chat/completions", {{"messages": messages, "stream": n == 2}})
    if n == 2:
        events = [json.loads(line[6:]) for line in answer.split("\\n") if line.startswith("data: {{")]
        text = "".join(e["choices"][0]["delta"].get("content") or "" for e in events)
    else:
        text = json.loads(answer)["choices"][0]["message"]["content"]
    messages.append({{"role": "assistant", "content": text}})
    print(text)
"""


async def over_http() -> RecordedSession:
    """The same conversation over HTTP, with the official client."""
    session = session_of(Talker())
    async with SessionServer() as server:
        http = openai.DefaultAsyncHttpxClient(trust_env=False)
        with server.open(session) as access:
            async with openai.AsyncOpenAI(base_url=access.base_url, api_key=access.api_key, http_client=http) as client:
                messages: list[Any] = []
                for n in range(3):
                    messages.append({"role": "user", "content": f"{NASTY}{n}"})
                    made = await client.chat.completions.create(model="m", messages=messages)
                    messages.append({"role": "assistant", "content": made.choices[0].message.content})
    return session


async def episode(box: Sandbox, agent: str, python: str = "python3") -> RecordedSession:
    """Service, agent and trainer, to the end of the session."""
    session, told = session_of(Talker()), list[str]()
    await box.upload({"files.py": script("files").encode(), "agent.py": agent.encode()})

    async def act() -> ExecResult:
        started = await box.exec(
            f"python3 files.py {LOG} >service.out 2>&1 & for i in $(seq 100); do "
            "grep -q listening service.out && exit 0; sleep 0.1; done; cat service.out; exit 1"
        )
        assert started.exit_code == 0, started.output
        done = await box.exec(f"{python} agent.py", timeout_s=60)
        assert done.exit_code == 0, done.output
        return done

    async with asyncio.timeout(100), asyncio.TaskGroup() as group:
        acting = group.create_task(act())
        group.create_task(answer_log(session, SandboxLink(box, LOG), report=told.append))
    assert acting.result().stdout.decode().split("\n") == ["answer 1", "answer 2", "answer 3", ""], (
        acting.result().output
    )
    assert told == []
    return session


def same(one: RecordedSession, other: RecordedSession) -> None:
    """Two recorded conversations, token by token."""
    assert len(one.recorder.sequences) == 1
    assert one.recorder.sequences == other.recorder.sequences
    assert one.recorder.chunks == other.recorder.chunks


@pytest.mark.bwrap
async def test_an_official_client_in_a_local_sandbox_is_recorded_as_over_http() -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    spec = SandboxSpec(network="none")
    async with provider_of("local") as provider, await provider.start_sandbox(spec) as box:
        same(await episode(box, OFFICIAL, sys.executable), await over_http())


@pytest.mark.parametrize(
    "engine", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("docker", "podman")]
)
async def test_an_agent_in_a_container_is_recorded_as_over_http(engine: str) -> None:
    if not await asyncio.to_thread(answers, engine):
        pytest.skip(f"{engine} does not answer")
    async with provider_of(engine) as provider:
        if not await provider.engine.find_image("ale-python:1"):
            await provider.build_image(python=True)
        async with await provider.start_sandbox(SandboxSpec(image="ale-python:1", network="none")) as box:
            same(await episode(box, PLAIN), await over_http())


@pytest.mark.bwrap
async def test_a_sandbox_whose_log_cannot_be_reached_is_the_agents_fault() -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    async with provider_of("local") as provider, await provider.start_sandbox(SandboxSpec(network="none")) as box:
        await box.exec(f"ln -s /etc/passwd {LOG}")
        with pytest.raises(AgentError, match="cannot be had"):
            await answer_log(session_of(Talker()), SandboxLink(box, LOG))
        with pytest.raises(AgentError, match="needs no-such-python"):
            await answer_log(session_of(Talker()), SandboxLink(box, LOG, "no-such-python"))
