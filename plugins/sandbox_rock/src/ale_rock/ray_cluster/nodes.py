"""A worker on each node of a Ray cluster: `--cluster ray`.

1. A worker is an actor on its node (`ray_worker.py`). Ray reserves for it what its sandboxes may use, so nothing else
   of the cluster is placed on the same CPUs, memory and GPUs.
2. The actors belong to this process, which looks at them all the time: they end when it ends, also by `kill -9`, and
   their sandboxes with them.
3. A node that joins gets a worker, and one that has left is forgotten. A worker that ends by itself is started again;
   the admin learns from its registration, or from its silence, that its sandboxes are lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from ale.errors import ConfigError, SandboxError
from ale.registry.validation import one_line_error
from ale_rock.admin.settings import is_loopback
from ale_rock.ray_cluster.worker import SandboxWorker, WorkerFault
from ale_rock.worker.settings import WorkerSettings

START_S = 120.0
"""Seconds that Ray may take to place a worker, and the worker to start."""
CLOSE_S = 20.0
SILENT_S = 60.0
"""Seconds without an answer after which a worker, or Ray's head, counts as gone."""
LOOK_S, AGAIN_S = 1.0, 2.0
"""Seconds between two looks at nodes and workers, and before a worker is started again."""
ENVIRONMENT = {
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # Ray would print the errors of calls that are not awaited
    "RAY_NUM_REDIS_GET_RETRIES": "1",  # else it tries for a quarter of an hour to reach a head that is gone
}
log = logging.getLogger("ale.rock")


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster."""

    id: str
    host: str
    address: str


@dataclass(frozen=True, slots=True)
class Room:
    """What Ray reserves for a worker on its node."""

    cpus: float
    memory_bytes: int
    gpus: int


def check_installed() -> None:
    """Raise `ConfigError` where Ray is not installed."""
    if find_spec("ray") is None:
        raise ConfigError(
            "--cluster ray needs Ray, which is not installed here: pip install 'ale-plugin-rock[ray]', on every node."
        )


def connect(address: str) -> None:
    """Connect this process to a Ray that runs. Raises `ConfigError`."""
    check_installed()
    if "://" in address:
        raise ConfigError(
            f"--address: Ray's client ({address}) is not supported; use one of Ray's nodes, with auto or with "
            "the address of its head as HOST:6379."
        )
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    try:
        ray.init(address=address, logging_level="ERROR")
    except Exception as error:  # Ray's own classes, plain ones, and those of the system
        with suppress(Exception):
            ray.shutdown()
        raise ConfigError(
            f"--address {address}: Ray cannot be reached: {one_line_error(error)}. Start it with `ray start --head` on "
            "one machine and `ray start --address HEAD:6379` on the others; this machine must be one of them."
        ) from error


def disconnect() -> None:
    """End the connection, and with it all workers that are left."""
    import ray

    ray.shutdown()


class NodeWorkers:
    """Keeps a worker on each node. `settings` are those of each worker, without its node's; they bound what is reserved
    of a node. `own` are the settings of the sandbox provider; `has_gpus`: whether its sandboxes can have GPUs."""

    def __init__(self, settings: WorkerSettings, own: dict[str, Any], has_gpus: bool) -> None:
        self._settings, self._own, self._has_gpus = settings, own, has_gpus
        self._keeping: dict[str, asyncio.Task[None]] = {}
        """The tasks that keep the workers, by the node's id."""
        self._names: dict[str, str] = {}
        """The names of the workers, by the node's id."""
        self._ending: set[asyncio.Task[None]] = set()
        self._unreached: set[str] = set()
        """Nodes that get no worker, because they do not reach the admin."""
        self._silent_since: float | None = None
        """When Ray's head stopped answering."""

    async def keep(self, leave: asyncio.Event) -> None:
        """Have a worker on each node until `leave` is set; then end them. Raises `SandboxError` if Ray does not answer
        for long."""
        leaving = asyncio.create_task(leave.wait())
        own_id, nodes = await asyncio.to_thread(read_nodes)
        here = nodes[own_id]
        admin = at_address(self._settings.admin_url or "", here.address)
        self._settings = self._settings.model_copy(update={"admin_url": admin})
        try:
            while not leave.is_set():
                for node_id in self._keeping.keys() - nodes.keys():
                    self._forget(node_id)
                for node in nodes.values():
                    if node.id not in self._keeping and self._may_have_worker(node, here):
                        self._names[node.id] = name_of(node, self._names)
                        self._keeping[node.id] = asyncio.create_task(self._keep_worker(node))
                tasks = [leaving, *self._keeping.values()]
                await asyncio.wait(tasks, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                for task in self._keeping.values():
                    if task.done():
                        task.result()  # a fault of this program
                nodes = await self._look_again(nodes)
        finally:
            leaving.cancel()
            for task in self._keeping.values():
                task.cancel()
            await asyncio.gather(*self._keeping.values(), *self._ending, return_exceptions=True)

    async def _look_again(self, nodes: dict[str, Node]) -> dict[str, Node]:
        """Return the nodes that live, or those of before while Ray's head does not answer."""
        began = time.monotonic()
        try:
            _, nodes = await asyncio.to_thread(read_nodes)
        except Exception as error:  # Ray's own classes, plain ones, and those of the system
            if self._silent_since is None:
                self._silent_since = began
                log.warning("Ray does not say which nodes it has: %s. It is asked again.", one_line_error(error))
            if time.monotonic() - self._silent_since > SILENT_S:
                raise SandboxError(
                    f"Ray has not answered for {SILENT_S:g} s: {one_line_error(error)}. Start it again."
                ) from error
        else:
            self._silent_since = None
        return nodes

    def _forget(self, node_id: str) -> None:
        log.warning("The node of the worker %s has left Ray.", self._names.pop(node_id))
        task = self._keeping.pop(node_id)
        task.cancel()
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _may_have_worker(self, node: Node, here: Node) -> bool:
        """Whether a worker there would reach the admin; if not, this is warned of once."""
        objection = describe_distance(node, here, self._settings.admin_url or "")
        if objection and node.id not in self._unreached:
            self._unreached.add(node.id)
            log.warning("%s", objection)
        return not objection

    async def _keep_worker(self, node: Node) -> None:
        """Have a worker on a node until this is cancelled, which ends it."""
        name, room, reported = self._names[node.id], None, ""
        while True:
            if room is None:
                room = await asyncio.to_thread(free_room, node, self._settings, self._has_gpus)
            served, why = False, "Ray has no CPUs or no memory free there, or its head does not answer"
            if room is not None:
                served, why = await self._work(node, name, room)
                if not served:
                    room = None  # others may have taken a part
            if served or why != reported:
                log.warning("The worker %s does not serve: %s. It will be started again.", name, why.rstrip("."))
                reported = why
            await asyncio.sleep(AGAIN_S)

    async def _work(self, node: Node, name: str, room: Room) -> tuple[bool, str]:
        """Start a worker and wait until it ends; returns whether it has served, and why it does no more."""
        from ray.exceptions import RayError

        limits = {"name": name, "cpus": room.cpus, "memory_bytes": room.memory_bytes}
        actor, served = None, False
        try:
            actor = await asyncio.to_thread(place, node, room)
            async with asyncio.timeout(START_S):
                answer = await actor.start.remote(self._settings.model_copy(update=limits), self._own, node.address)
            if isinstance(answer, WorkerFault):
                return served, answer.sentence
            served = True
            print(f"worker {name}: {answer}", flush=True)
            return served, await watch(actor)
        except TimeoutError:
            return served, f"Ray did not start it within {START_S:g} s"
        except (RayError, OSError, ValueError) as error:  # the last two from `place`
            first = (str(error).splitlines() or [type(error).__name__])[0]
            return served, f"it has died, or its node cannot be reached ({one_line_error(first)})"
        finally:
            if actor is not None:
                await end(actor)


def read_nodes() -> tuple[str, dict[str, Node]]:
    """Return the id of this machine's node, and the nodes that live, by their ids."""
    import ray

    found = [
        Node(each["NodeID"], each["NodeManagerHostname"], each["NodeManagerAddress"])
        for each in ray.nodes()
        if each["Alive"]
    ]
    return ray.get_runtime_context().get_node_id(), {node.id: node for node in found}


def free_room(node: Node, limits: WorkerSettings, has_gpus: bool) -> Room | None:
    """Return what is not reserved of a node, within the limits; None if no sandbox could run with that, or Ray's
    head does not answer."""
    from ray._private.state import available_resources_per_node  # its own libraries use it, and there is no other way

    try:
        free = available_resources_per_node().get(node.id, {})
    except Exception:  # as in `_look_again`, which says so
        return None
    cpus, memory, gpus = float(free.get("CPU", 0)), int(free.get("memory", 0)), int(free.get("GPU", 0))
    if limits.cpus is not None:
        cpus = min(cpus, limits.cpus)
    if limits.memory_bytes is not None:
        memory = min(memory, limits.memory_bytes)
    if limits.gpus is not None:
        gpus = min(gpus, limits.gpus)
    return Room(cpus, memory, gpus if has_gpus else 0) if cpus > 0 and memory > 0 else None


def place(node: Node, room: Room) -> Any:
    """Have Ray start a worker's actor on a node. Raises `RayError`, `OSError` or `ValueError`."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    options = {
        "num_cpus": room.cpus,
        "memory": room.memory_bytes,
        "num_gpus": room.gpus,
        "max_restarts": 0,
        "max_task_retries": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node.id, soft=False),
    }
    return actor_class().options(**options).remote()


@cache
def actor_class() -> Any:
    """Return the workers' class as Ray's, which is sent to Ray once."""
    import ray

    return ray.remote(SandboxWorker)


async def watch(actor: Any) -> str:
    """Wait until the admin refuses a worker, or the worker does not answer any more; returns which it was, as a
    sentence. Raises `RayError` if it dies."""
    from ray.exceptions import ActorUnavailableError

    while True:
        try:
            async with asyncio.timeout(SILENT_S):
                fault = await actor.look.remote()
        except TimeoutError:
            return f"it did not answer for {SILENT_S:g} s"
        except ActorUnavailableError:  # the connection has broken, and Ray does not know yet whether it lives
            fault = None
        if fault is not None:
            return str(fault.sentence)
        await asyncio.sleep(LOOK_S)


async def end(actor: Any) -> None:
    """Have a worker's actor stop its sandboxes, then end it."""
    import ray
    from ray.exceptions import RayError

    with suppress(RayError, TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await actor.close.remote()
    with suppress(RayError, OSError, ValueError):
        await asyncio.to_thread(ray.kill, actor, no_restart=True)


def describe_distance(node: Node, here: Node, admin_url: str) -> str:
    """Return why a worker on a node would not reach the admin, which is reached from here; empty if it would."""
    if node.address == here.address or not is_loopback(urlsplit(admin_url).hostname or ""):
        return ""
    return (
        f"The node {node.host} ({node.address}) gets no worker: it does not reach the service at {admin_url}. Serve at "
        "an address that it reaches, with --host 0.0.0.0 and --token-file."
    )


def name_of(node: Node, taken: dict[str, str]) -> str:
    """Return a name for a node's worker: the machine's, so that what it keeps there is found by the next Ray."""
    return node.host if node.host not in taken.values() else f"{node.host}-{node.id[:8]}"


def at_address(url: str, address: str) -> str:
    """Return the URL of an admin as other machines reach it: where it listens at every address, this machine's."""
    for every in ("//0.0.0.0:", "//[::]:"):
        url = url.replace(every, f"//{f'[{address}]' if ':' in address else address}:")
    return url
