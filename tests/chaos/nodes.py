"""Two Ray nodes on this machine, what lives on them, and what is left there after a run."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from namespaces import processes
from support import forked_worker, ray_nodes

from ale_testing.processes import below

NODE = {"num_cpus": 8, "setup_worker_path": forked_worker.__file__}
ROLES = {"engine": "EngineActor", "worker": "RolloutWorker", "rank": "RankActor"}
"""The actors' classes."""
SYSTEM = {
    "prestart_worker_first_driver": False,  # else each node starts a process for each CPU
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 3,  # so that a node whose raylet was killed counts as lost after seconds
}
OWN = ("/ray/", "forked_worker", "ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent")
"""Words in the command lines of Ray's own processes; a worker that waits for an actor is one of them."""
GONE_S = 30.0
"""How long actors, processes and files of a run may be there after its end: those of a killed run take seconds."""


class Nodes:
    """The nodes, whose files are in a folder. They end with this program's namespaces."""

    def __init__(self, folder: Path) -> None:
        os.environ |= {**ray_nodes.ENVIRONMENT, "RAY_TMPDIR": str(folder)}
        forked_worker.start_server(folder.with_name("fork"))
        from ray.cluster_utils import Cluster

        head = {**NODE, "include_dashboard": False, "_system_config": SYSTEM}
        self._cluster = Cluster(initialize_head=True, head_node_args=head, shutdown_at_exit=False)
        self._second: Any = self._cluster.add_node(**NODE)
        self._killed = False

    @property
    def address(self) -> str:
        """Where runs find them. A run's own process belongs to the first node."""
        return str(self._cluster.address)

    def actors(self, role: str) -> list[int]:
        """Return the processes of the actors of a role."""
        return sorted(row["Pid"] for row in self._alive() if row["ActorClassName"] == ROLES[role])

    def second_node(self) -> set[int]:
        """Return the processes of the second node: its raylet, its actors, and what these have started."""
        here = [row["Pid"] for row in self._alive() if row["Address"]["NodeID"] == self._second.node_id]
        return {self._raylet().pid, *here}.union(*map(below, here))

    def _alive(self) -> list[dict[str, Any]]:
        return list(self._cluster.global_state.actor_table(None, None, "ALIVE").values())

    def kill_raylet(self) -> None:
        """Kill the raylet of the second node."""
        self._raylet().kill()
        self._raylet().wait()  # Ray's processes count it as alive until then
        self._killed = True

    def mend(self) -> None:
        """Replace the second node if it was killed."""
        if self._killed:
            self._cluster.remove_node(self._second, allow_graceful=False)
            self._second, self._killed = self._cluster.add_node(**NODE), False

    def find_leftovers(self, others: set[int]) -> list[str]:
        """Wait until nothing is left of any run; returns what is left nevertheless, in sentences. `others` are
        processes that do not belong to a run."""
        until = time.monotonic() + GONE_S
        while (left := self._look(others)) and time.monotonic() < until:
            time.sleep(0.1)
        return left

    def end_leftovers(self, others: set[int]) -> None:
        """Kill what is left of runs, so that it is not counted for the next one too."""
        for pid in _of_runs(others):
            os.kill(pid, signal.SIGKILL)

    def _look(self, others: set[int]) -> list[str]:
        state = self._cluster.global_state
        actors = [row["ActorClassName"] for row in state.actor_table(None).values() if row["State"] != "DEAD"]
        groups = [row["state"] for row in state.placement_group_table().values() if row["state"] != "REMOVED"]
        found = {
            "actors": actors,
            "placement groups": groups,
            "processes": [" ".join(line)[:100] for line in _of_runs(others).values()],
            "files in /dev/shm": os.listdir("/dev/shm"),
        }
        return [f"{what} are left: {each}" for what, each in found.items() if each]

    def _raylet(self) -> Any:
        from ray._private.ray_constants import PROCESS_TYPE_RAYLET

        return self._second.all_processes[PROCESS_TYPE_RAYLET][0].process


def _of_runs(others: set[int]) -> dict[int, list[str]]:
    """Return the processes that belong neither to Ray itself, as its workers do that wait for an actor, nor to
    `others`."""
    return {
        pid: line
        for pid, line in processes().items()
        if pid not in others and not any(word in part for part in line for word in OWN)
    }
