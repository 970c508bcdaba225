"""The connection to Ray: one that runs, or one that is started for the run and ended with it.

Ray that is started for a run counts more CPUs than the run's actors ask for, so that a laptop has room for all of
them, and for more (`ale cluster scale`). Its files are in a temporary folder (`temporary_folder.py`), which is removed
with it."""

from __future__ import annotations

import asyncio
import math
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ale.errors import ConfigError
from ale.registry.validation import one_line_error
from ale_ray.temporary_folder import TemporaryFolder

HEADROOM = 4
ANSWER_S = 15.0
"""How long a head may take to answer a question, asked by a program of its own: Ray itself would wait for ever."""
QUESTION = (
    "import sys; from ray._private.services import canonicalize_bootstrap_address as whole; "
    "from ray._raylet import GcsClient; "
    "GcsClient(address=whole(sys.argv[1])).internal_kv_exists(b'ale', None, timeout=5)"
)
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # Ray would print errors of calls whose callers have gone
}


@dataclass(frozen=True, slots=True)
class ActorResources:
    """What an actor needs."""

    role: str
    cpus: float
    devices: int = 0


class Connection:
    """Ray, between `open` and `close`."""

    def __init__(self, address: str | None, namespace: str) -> None:
        self._address = address
        self._namespace = f"{namespace}-{uuid.uuid4().hex[:6]}"  # names of a run before it may not be free yet
        self._folder: TemporaryFolder | None = None
        self._opening: asyncio.Future[None] | None = None
        self.opened = False
        """Ray must not be asked for anything otherwise: it would connect by itself."""

    async def open(self, rooms: Sequence[ActorResources]) -> None:
        """Connect, or start Ray with room for these actors. Raises `ConfigError`."""
        if self._address is not None and "://" in self._address:
            raise ConfigError(
                f"cluster.address: Ray's client ({self._address}) is not supported; start the run on one of Ray's "
                "nodes, with auto, or with the address of its head as HOST:6379."
            )
        # In a thread, Ray leaves the handlers of Python alone.
        self._opening = asyncio.ensure_future(asyncio.to_thread(self._open, rooms))
        try:
            await asyncio.shield(self._opening)  # a thread goes on when it is cancelled, and `close` waits for it
        finally:
            restore_sigterm()

    def _open(self, rooms: Sequence[ActorResources]) -> None:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        own: dict[str, Any] = {"address": self._address}
        if self._address is None:
            if "RAY_AUTH_MODE" not in os.environ:  # who reaches its ports could run code
                os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
            self._folder = TemporaryFolder()
            cpus = HEADROOM * max(float(os.cpu_count() or 1), sum(room.cpus for room in rooms))
            own = {
                "address": "local",
                "num_cpus": math.ceil(cpus),
                "include_dashboard": False,
                "_temp_dir": self._folder.path,
                "_system_config": {"prestart_worker_first_driver": False},  # else it starts a process for each CPU
            }
        import ray

        if ray.is_initialized():
            raise ConfigError("cluster: this process uses Ray already; a run opens and closes it by itself.")
        if self._address is not None:
            check_answers(self._address)
        try:
            ray.init(namespace=self._namespace, log_to_driver=False, logging_level="ERROR", **own)
        except Exception as error:  # Ray's own classes, plain ones, and those of the system
            with suppress(Exception):
                ray.shutdown()  # what has been started
            where = "cluster.address" if self._address else "cluster"
            if other := describe_other_release(str(error)):
                raise ConfigError(f"{where}: {other}") from error
            raise ConfigError(
                f"{where}: Ray cannot be reached or started: {one_line_error(error)}. Start a node with `ray start "
                "--head`, or leave cluster.address out for a Ray of the run's own."
            ) from error
        self.opened = True

    async def close(self) -> None:
        """Disconnect, and end Ray if this has started it."""
        if self._opening is not None:
            await asyncio.wait([self._opening])
            if not self._opening.cancelled():
                self._opening.exception()  # `open` has raised it, or was cancelled before
            restore_sigterm()
        if self.opened:
            import ray

            self.opened = False
            await asyncio.to_thread(ray.shutdown)
        if self._folder is not None:
            await asyncio.to_thread(self._folder.remove)


def check_answers(address: str) -> None:
    """Ask the head at an address, as HOST:PORT, for something. Raises `ConfigError` if it does not answer."""
    if ":" not in address:  # Ray looks for `auto` itself, and says at once if there is none
        return
    question = [sys.executable, "-c", QUESTION, address]
    with suppress(subprocess.TimeoutExpired):
        if subprocess.run(question, capture_output=True, timeout=ANSWER_S, check=False).returncode == 0:
            return
    raise ConfigError(
        f"cluster.address: Ray cannot be reached: no head of Ray answers at {address}. Start one there with `ray start "
        "--head`, give the address that it prints, or leave cluster.address out for a Ray of the run's own."
    )


def describe_other_release(message: str) -> str:
    """Return what to do where Ray's message says that the cluster runs other releases of Ray or Python than this
    process; empty if it says something else."""
    found = re.findall(r"Ray: (\S+)\s+Python: (\S+)", message)
    if not message.startswith("Version mismatch") or len(found) != 2:
        return ""
    theirs, own = found
    parts = [name for name, one, other in zip(("ray", "Python"), theirs, own, strict=True) if one != other]
    take = [f"`pip install ray=={theirs[0]}`" if part == "ray" else f"Python {theirs[1]}" for part in parts]
    give = [f"ray=={own[0]}" if part == "ray" else f"Python {own[1]}" for part in parts]
    return (
        f"The cluster runs Ray {theirs[0]} with Python {theirs[1]}, this run has Ray {own[0]} with Python {own[1]}, "
        f"and Ray connects only the same. Start the nodes again with {' and '.join(give)}, or start the run in an "
        f"environment with those of the cluster: {' and '.join(take)}."
    )


def restore_sigterm() -> None:
    """Have SIGTERM handled as before. Ray, when it connects, puts a handler in front of Python's, which prints a stack
    and aborts the process three seconds later, in the middle of an orderly end."""
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGTERM)
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)
            signal.siginterrupt(signal.SIGTERM, False)


def check_resources(rooms: Sequence[ActorResources]) -> None:
    """Refuse actors for which the nodes have no room: Ray would wait without end. Raises `ConfigError`."""
    import ray

    nodes = [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]
    for room in sorted(rooms, key=lambda room: (-room.devices, -room.cpus)):
        fits = next((n for n in nodes if n.get("CPU", 0) >= room.cpus and n.get("GPU", 0) >= room.devices), None)
        if fits is None:
            raise ConfigError(
                f"cluster: {len(rooms)} actors need {sum(r.cpus for r in rooms):g} CPUs and "
                f"{sum(r.devices for r in rooms)} GPUs, and no node has room left for one of {room.role} "
                f"({room.cpus:g} CPUs, {room.devices} GPUs). Ray has {describe_nodes()}. Take fewer, ask for less "
                f"(cluster.{room.role}.cpus), or add nodes."
            )
        fits["CPU"] = fits.get("CPU", 0) - room.cpus
        fits["GPU"] = fits.get("GPU", 0) - room.devices


def describe_gpus(number: int) -> str:
    """Return what an actor with so many GPUs computes on, for people."""
    return "cpu" if not number else "1 GPU" if number == 1 else f"{number} GPUs"


def describe_nodes() -> str:
    """Return the nodes with their CPUs and GPUs, as part of a sentence."""
    import ray

    found = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    each = [f"{n.get('CPU', 0):g} CPUs and {n.get('GPU', 0):g} GPUs" for n in found]
    return f"{len(found)} node{'s' if len(found) != 1 else ''} ({'; '.join(each)})"
