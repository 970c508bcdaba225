"""Nodes of Ray on this machine, whose workers are forked (`forked_worker.py`)."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support import forked_worker

ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",  # before the import: else a token appears in the home folder
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # else other tests have all the time
}


_servers: list[subprocess.Popen[bytes]] = []


def start_forking() -> None:
    """Start the server of workers, unless it runs; it ends with this process, as what it imports serves all nodes."""
    if _servers and _servers[-1].poll() is None:
        return
    folder = tempfile.mkdtemp(prefix="ale-forked-", dir="/tmp")  # sockets need a short path
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _servers.append(forked_worker.start_server(Path(folder, "fork")))
    atexit.register(_servers[-1].kill)


@contextmanager
def ray_nodes(count: int, *, cpus: int, gpus: int = 0) -> Iterator[str]:
    """Start so many nodes and yield their address; each counts so many CPUs and GPUs, whatever this machine has."""
    os.environ |= ENVIRONMENT
    from ray.cluster_utils import Cluster

    start_forking()
    node = {"num_cpus": cpus, "num_gpus": gpus, "setup_worker_path": forked_worker.__file__}
    # Else each node starts a process for each CPU as soon as a run begins.
    head = {**node, "include_dashboard": False, "_system_config": {"prestart_worker_first_driver": False}}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(count - 1):
            nodes.add_node(**node)
        yield nodes.address
    finally:
        nodes.shutdown()


@contextmanager
def connected_nodes(count: int, *, cpus: int, gpus: int = 0) -> Iterator[None]:
    """The same; this process is connected to them."""
    with ray_nodes(count, cpus=cpus, gpus=gpus) as address:
        import ray

        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        try:
            yield
        finally:
            ray.shutdown()
