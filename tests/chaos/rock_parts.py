"""The parts of a ROCK service for `rock.py`: the admin, its database behind a relay, and workers on machines of their
own.

1. A machine is a network namespace that a bridge joins to the admin's, with a temporary folder of its own. Where there
   is no `ip`, machines share the loopback address, and no network is cut.
2. The records that the local provider keeps of its sandboxes, with the processes that they name, say what lives on a
   machine. Control groups are hidden from workers: their names are the sandboxes', and machines would share them.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from postgres_server import PostgresServer
from service_process import ALE

from ale_local.sandbox_records import read_all
from ale_testing.processes import below, command_line, running

TOKENS = {"admin": "chaos-token-of-the-admin", "user": "chaos-token-of-anna", "worker": "chaos-token-of-workers"}
TOKEN_FILE = "\n".join(
    f"- {{token: {token}, role: {role}{', user: anna' if role == 'user' else ''}}}" for role, token in TOKENS.items()
)
HOST, PORT, WORKER_PORT, RELAY_PORT, DATABASE_PORT = "10.77.0.1", 8080, 8090, 8433, 8432
START_S = 60.0
HIDE = "mount -t tmpfs none /sys/fs/cgroup; exec sleep infinity"


def has_network() -> bool:
    """Whether networks can be made here."""
    return shutil.which("ip") is not None


def ip(command: str, machine: int | None = None) -> None:
    """Run `ip`, in this program's network or a machine's."""
    inside = [] if machine is None else ["nsenter", f"--net=/proc/{machine}/ns/net"]
    subprocess.run([*inside, "ip", *command.split()], check=True)


def make_bridge() -> None:
    """Make the network that joins the machines to the admin's."""
    for command in ("link set lo up", "link add br0 type bridge", f"addr add {HOST}/24 dev br0", "link set br0 up"):
        ip(command)


class Part:
    """A process of `ale rock`, which can be killed, paused and started again."""

    def __init__(
        self,
        folder: Path,
        name: str,
        args: Sequence[str],
        into: Sequence[str] = (),
        env: Mapping[str, str] = os.environ,
    ) -> None:
        self.log = folder / f"{name}.log"
        self._command = [*into, sys.executable, "-c", ALE, "rock", *args]
        self._folder, self._env = folder, {**os.environ, "OMP_NUM_THREADS": "1", **env}
        self.kept = False
        """Whether it is started again if it ends by itself."""
        self.start()

    def start(self) -> None:
        """Start it, once it has ended."""
        self.kept = True
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, cwd=self._folder, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @property
    def pid(self) -> int:
        """Its process: `nsenter` has become it."""
        return self.process.pid

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.kept = False
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        """Let it stand still."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it run again."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """End it by SIGTERM; returns its exit code."""
        self.kept = False
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(START_S)


class Machine:
    """A machine with a worker."""

    def __init__(self, folder: Path, number: int, network: bool) -> None:
        self.name, self.folder = f"w{number}", folder / f"w{number}"
        self.folder.mkdir(mode=0o755)
        spaces = ["unshare", "--mount", *(["--net"] if network else [])]
        self._holder = subprocess.Popen([*spaces, "sh", "-c", HIDE])
        while command_line(self._holder.pid)[:1] != ["sleep"]:
            assert self._holder.poll() is None, "the machine's namespaces could not be made"
            time.sleep(0.01)
        pid, self.host, self._link = self._holder.pid, "127.0.0.1", f"v{number}"
        if network:
            self.host = f"10.77.0.{10 + number}"
            ip(f"link add {self._link} type veth peer name e{number}")
            ip(f"link set e{number} netns {pid}")
            ip(f"link set {self._link} master br0 up")
            for command in ("link set lo up", f"addr add {self.host}/24 dev e{number}", f"link set e{number} up"):
                ip(command, pid)
        admin = f"http://{HOST if network else '127.0.0.1'}:{PORT}"
        port = WORKER_PORT if network else WORKER_PORT + number
        arguments = ["worker", "--admin", admin, "--name", self.name, "--host", self.host, "--port", str(port)]
        into = ["nsenter", f"--mount=/proc/{pid}/ns/mnt", *([f"--net=/proc/{pid}/ns/net"] if network else [])]
        env = {"TMPDIR": str(self.folder), "TOKEN": TOKENS["worker"]}
        self.worker = Part(folder, self.name, [*arguments, "--token-env", "TOKEN"], into, env)

    @property
    def records(self) -> Path:
        """Where the provider keeps its records."""
        return self.folder / f"ale-local-{os.getuid()}"

    def living(self) -> dict[str, int]:
        """Return the sandboxes that live here, with their processes."""
        return {record.id: record.pid for record in read_all(self.records) if record.alive}

    def cut(self) -> None:
        """Cut its network."""
        ip(f"link set {self._link} down")

    def heal(self) -> None:
        """Join it again."""
        ip(f"link set {self._link} up")

    def close(self) -> None:
        """End the machine; its worker has ended."""
        self._holder.kill()
        self._holder.wait()


class Relay:
    """Passes TCP connections on to the database, until it is told to hold them up or to cut them."""

    def __init__(self, port: int, to: int) -> None:
        self._port, self._to = port, to
        self._passing = asyncio.Event()
        self._passing.set()
        self._refusing = False
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", self._port)

    def stall(self) -> None:
        """Keep connections open and pass nothing on."""
        self._passing.clear()

    def cut(self) -> None:
        """End all connections, and refuse new ones."""
        self._refusing = True
        for writer in self._open:
            writer.transport.abort()

    def heal(self) -> None:
        """Pass everything on again."""
        self._refusing = False
        self._passing.set()

    async def close(self) -> None:
        """Listen no more."""
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.sleep(0)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            if self._refusing:
                return
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._to)
            self._open.add(to_writer)
            ways = [asyncio.create_task(self._copy(*way)) for way in ((reader, to_writer), (to_reader, writer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                self._open.discard(to_writer)
                to_writer.transport.abort()
        except OSError:  # the database does not run
            pass
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                await self._passing.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass


class RockService:
    """All parts of a service, in a folder; `database` is "postgresql" or "sqlite"."""

    def __init__(self, folder: Path, database: str, workers: int, network: bool) -> None:
        self.folder, self.database, self.network = folder, database, network
        self._tokens = folder / "tokens.yaml"
        self._tokens.write_text(TOKEN_FILE)
        self._tokens.chmod(0o600)
        self.server: PostgresServer | None = None
        self.relay = Relay(RELAY_PORT, DATABASE_PORT)
        self.sqlite = folder / "rock.sqlite"
        url = f"sqlite:///{self.sqlite}"
        if database == "postgresql":
            self.server = PostgresServer(folder / "postgresql", DATABASE_PORT)
            self.server.create("rock")
            url = self.server.url("rock", RELAY_PORT)
        host = HOST if network else "127.0.0.1"
        self.url = f"http://{host}:{PORT}"
        arguments = ["--host", host, "--port", str(PORT), "--token-file", str(self._tokens), "--worker", "none"]
        self._arguments = ["serve", *arguments, "--database", url]
        self._workers = workers
        self.machines: list[Machine] = []

    async def start(self) -> None:
        """Start all parts, and wait until they know each other."""
        await self.relay.start()
        self.admin = Part(self.folder, "admin", self._arguments)
        self._keeping = asyncio.create_task(self._keep_admin())
        self.machines = [Machine(self.folder, number, self.network) for number in range(self._workers)]
        headers = {"Authorization": f"Bearer {TOKENS['admin']}"}
        self._http = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=30)
        until = time.monotonic() + START_S
        while not ((status := await self.ask("status")) and len(status["workers"]) == self._workers):
            assert time.monotonic() < until, f"the service did not start; see {self.folder}"
            await asyncio.sleep(0.05)

    async def _keep_admin(self) -> None:
        """Start the admin again, as a service manager does: it ends if its database does not answer when it starts."""
        while True:
            await asyncio.sleep(0.2)
            if self.admin.kept and self.admin.process.poll() is not None:
                self.admin.start()

    async def ask(self, what: str) -> dict[str, Any] | None:
        """Return what the admin says of itself; None if it does not answer."""
        try:
            answer = await self._http.get(f"/apis/ale/v1/{what}")
        except httpx.HTTPError:
            return None
        return answer.json() if answer.status_code == 200 else None

    async def stop(self) -> list[str]:
        """End all parts as a service manager does; returns what is wrong with that, in sentences."""
        codes = {machine.name: await asyncio.to_thread(machine.worker.stop) for machine in self.machines}
        self._keeping.cancel()
        codes["the admin"] = await asyncio.to_thread(self.admin.stop)
        wrong = [f"{name} ended with the exit code {code}" for name, code in codes.items() if code]
        await self._http.aclose()
        await self.relay.close()
        if self.server is not None:
            self.server.stop()
        for machine in self.machines:
            machine.close()
            left = [path.name for path in machine.folder.rglob("*") if path != machine.records]
            wrong += [f"files are left on {machine.name}: {left[:5]}"] if left else []
        return wrong + [f"a process is left: {command_line(pid)[:3]}" for pid in running(below())]
