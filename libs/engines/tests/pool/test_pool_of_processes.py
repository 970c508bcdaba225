"""The pool with replicas that are processes: they are killed for real, and nothing of them is left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import psutil

from ale.errors import EngineError
from ale.specs.engine import FolderTicket, GenerateRequest, Generation, PolicyVersion, Tokenizer
from ale_engines.pool.continuation import NOTHING, join_parts
from ale_engines.pool.replica import Interrupted, Replica
from ale_engines.server.process import ServerProcess

from .conftest import ask, expected, policy, pool_of, until

SERVER = """
import asyncio, json, os, sys
version = 0
async def serve(reader, writer):
    global version
    request = json.loads(await reader.readline())
    if "version" in request:
        version = request["version"]
    context = request.get("tokens", [])
    for number in range(request.get("n", 0)):
        while number == 30 and os.path.exists(sys.argv[2]):
            await asyncio.sleep(0.01)
        context.append((31 * sum(context) + 7 * len(context) + 13 * version) % 50)
        writer.write(json.dumps([context[-1], version]).encode() + b"\\n")
        await writer.drain()
        await asyncio.sleep(0.005)
    writer.write(b"end\\n")
    await writer.drain()
    writer.close()
async def main():
    async with await asyncio.start_unix_server(serve, sys.argv[1]) as server:
        print("ready", flush=True)
        await server.serve_forever()
asyncio.run(main())
"""
"""A server that samples as `conftest.next_token` does, and sends each token when it has it; as long as a file is there,
it samples no more than 30."""


class ProcessReplica(Replica):
    """A replica whose server is a process of its own."""

    transports = ("folder",)
    max_context = 1000
    slots = 4
    name = ""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name  # type: ignore[misc]
        self._folder, self._version, self.starts, self.received = folder, 0, 0, 0
        self.hold = folder / f"{name} does not finish"
        self.process: ServerProcess | None = None

    @property
    def version(self) -> int:
        return self._version

    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        await self.restart()

    async def restart(self) -> None:
        await self.close()
        self.starts += 1
        self._socket = self._folder / f"{self.name}{self.starts}"
        argv = [sys.executable, "-c", SERVER, str(self._socket), str(self.hold)]
        self.process = ServerProcess(
            argv, dict(os.environ), self._folder / f"{self._socket.name}.log", self.name, grace_s=0.5
        )
        await self.process.start()
        await until(lambda: "ready" in (self.process.log_tail() if self.process else ""))
        self._version = 0

    async def close(self) -> None:
        if self.process is not None:
            await self.process.close()

    async def check(self) -> None:
        assert self.process is not None
        if not self.process.running:
            raise EngineError(f"{self.name} {self.process.ended}.")
        await self._send({})

    async def interrupt(self) -> None:
        """The server's end interrupts."""

    async def load_weights(self, policy: PolicyVersion) -> None:
        assert isinstance(policy.ticket, FolderTicket)
        await self._send({"version": policy.version})
        self._version = policy.version

    async def generate(self, request: GenerateRequest) -> Generation:
        return await self._send({"tokens": request.token_ids, "n": request.sampling.max_tokens})

    async def _send(self, message: dict[str, object]) -> Generation:
        done = NOTHING
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_unix_connection(self._socket)
            try:
                writer.write(json.dumps(message).encode() + b"\n")
                while line := await reader.readline():
                    if line == b"end\n":
                        return done
                    token, version = json.loads(line)
                    self.received += 1
                    done = join_parts(done, Generation((token,), (-1.0,), (version,), "length"))
            finally:
                writer.close()
        raise Interrupted(f"{self.name} has lost its server.", done)


async def test_killed_servers_lose_no_generation_and_serve_again_with_the_current_weights(tmp_path: Path) -> None:
    replicas = [ProcessReplica(name, tmp_path) for name in "ab"]
    pids = []
    async with pool_of(*replicas) as pool:
        await pool.load_weights(policy(2))
        for victim in replicas:
            requests = [ask(f"s{i}", max_tokens=60, prompt=(i,)) for i in range(8)]
            running = [asyncio.ensure_future(pool.generate(request)) for request in requests]
            received = victim.received
            victim.hold.touch()  # so that it is killed while it samples, however late that is
            await until(lambda before=received, victim=victim: victim.received >= before + 20)
            assert victim.process is not None
            assert victim.process.pid is not None
            pids.append(victim.process.pid)
            os.kill(victim.process.pid, signal.SIGKILL)
            victim.hold.unlink()
            results = await asyncio.wait_for(asyncio.gather(*running), 60)
            assert [result.token_ids for result in results] == [expected(request, 2) for request in requests]
            assert {version for result in results for version in result.versions} == {2}
            await until(lambda: pool.metrics()["replicas_serving"] == 2)
        assert pool.metrics()["interruptions"] >= 2
        assert [(replica.starts, replica.version) for replica in replicas] == [(2, 2), (2, 2)]
        pids += [replica.process.pid for replica in replicas if replica.process and replica.process.pid]
    assert len(pids) == 4
    await until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
