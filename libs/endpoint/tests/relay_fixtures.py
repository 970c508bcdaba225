"""What the tests of the relays share: an endpoint at a Unix socket, and an agent that has nothing but a relay to reach
it by."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from served_sessions import ServedSession, ServedSessions

from ale.registry.hooks import Hooks
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine, Sampling
from ale_endpoint.relays import SCRIPTS, script

PROGRAMS = {"python": "python3", "shell": "sh", "node": "node"}
CALLS = 100
ANSWER = "You are heard, and this is long enough for a stream of several pieces to carry it to you.\n"

# Starts the relay, then asks as many times at once as it is told to, and once for a stream; all through the relay's
# port.
AGENT = """
import http.client, json, subprocess, sys, threading
calls, key, port, *relay = sys.argv[1:]
devices = {line.split(":")[0].strip() for line in open("/proc/net/dev").read().splitlines()[2:]}
assert devices == {"lo"}, devices
program = subprocess.Popen(relay, stdout=subprocess.PIPE)
line = program.stdout.readline().decode()
said, failures = [], []

def ask(n, **more):
    try:
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
        body = {"messages": [{"role": "user", "content": "call %d" % n}], **more}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Authorization": "Bearer " + key})
        answer = connection.getresponse()
        text = answer.read().decode()
        if answer.status != 200:
            raise OSError(text)
        return text
    except Exception as error:
        failures.append(repr(error))

def plain(n):
    said.append(json.loads(ask(n) or "{}"))

threads = [threading.Thread(target=plain, args=(n,)) for n in range(int(calls))]
[t.start() for t in threads]
[t.join() for t in threads]
stream = ask(-1, stream=True)
program.terminate()
code = program.wait(60)
texts = sorted({a["choices"][0]["message"]["content"] for a in said if a})
found = {"line": line, "said": len(said), "texts": texts, "stream": stream, "failures": failures, "code": code}
print(json.dumps(found))
"""


class Parrot(Driver, InferenceEngine):
    """Says the same each time, a little later."""

    max_context = 4096
    version = 0

    async def load_model(self, folder: object, tokenizer: object) -> None: ...

    async def load_weights(self, policy: object) -> None: ...

    async def generate(self, request: GenerateRequest) -> Generation:
        await asyncio.sleep(0.05)
        tokenizer = byte_tokenizer()
        ids = (*tokenizer.encode(ANSWER), *tokenizer.stop_token_ids)
        return Generation(ids, (-0.1,) * len(ids), (0,) * len(ids), "stop")


def file_of(name: str) -> str:
    """The file of a relay."""
    return SCRIPTS[name][0]


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[ServedSession]:
    """The session of an endpoint at `folder/endpoint.sock`; the agent's program and the relays lie beside it."""
    for name in PROGRAMS:
        (folder / file_of(name)).write_text(script(name))
    (folder / "agent.py").write_text(AGENT)
    parrot = Parrot(PluginConfig(), DriverContext())
    async with ServedSessions(byte_tokenizer(), parrot, Hooks(), folder / "endpoint.sock") as endpoint:
        yield endpoint.open("e", Sampling(max_tokens=200), max_calls=CALLS + 1, max_context=4096)


def relay_command(name: str, folder: str, port: int = 8600, socket: str = "endpoint.sock") -> list[str]:
    """How a relay is started whose file lies in a folder. Skips the test where this machine lacks what it needs."""
    for program in (PROGRAMS[name], *(["socat"] if name == "shell" else [])):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    return [PROGRAMS[name], f"{folder}/{file_of(name)}", f"{folder}/{socket}", str(port)]


async def agent_in(box: Sequence[str], folder: str, name: str, session: ServedSession) -> None:
    """Let the agent ask from within a box (the command that runs others in it), and look at what it heard."""
    relay = relay_command(name, folder)
    command = [*box, "python3", f"{folder}/agent.py", str(CALLS), session.api_key, "8600", *relay]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    try:
        stdout, stderr = await asyncio.wait_for(process.communicate(), 120)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, stderr.decode()
    heard = json.loads(stdout)
    assert heard["failures"] == []
    assert heard["line"] == f"listening on http://127.0.0.1:8600 for {folder}/endpoint.sock\n"
    assert (heard["said"], heard["texts"]) == (CALLS, [ANSWER])
    events = [json.loads(part[6:]) for part in heard["stream"].split("\n\n") if part.startswith("data: {")]
    pieces = [event["choices"][0]["delta"].get("content") or "" for event in events]
    assert "".join(pieces) == ANSWER
    assert len([piece for piece in pieces if piece]) > 1
    assert heard["code"] in (0, -15)
    assert len(session.recorder.chunks) == CALLS + 1
