"""`ale rock serve --cluster ray`: a worker on each node, for as long as the node and the service are there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from service_process import ALE, Command, Service
from support import forked_worker
from support.ray_nodes import ENVIRONMENT, connected_nodes
from support.sandbox_providers import must_answer

from ale.errors import SandboxError
from ale_rock.ray_cluster import nodes as nodes_module
from ale_rock.ray_cluster.nodes import Node, NodeWorkers, at_address, describe_distance
from ale_rock.worker.settings import WorkerSettings
from ale_testing import processes

os.environ |= ENVIRONMENT
ray: Any = pytest.importorskip("ray")

pytestmark = [pytest.mark.bwrap, pytest.mark.slow]
START = "/apis/envs/sandbox/v1/start_async"
EXECUTE = "/apis/envs/sandbox/v1/execute"
SMALL = {"image": "any", "memory": "64m", "cpus": 0.5, "startup_timeout": 120}
CPUS, OFFERED = 4.0, 1.0
LIMIT_S = 120.0


@pytest.fixture(scope="module")
def here() -> Iterator[str]:
    """A Ray with one node; returns its id."""
    must_answer("local")
    with connected_nodes(1, cpus=int(CPUS)):
        yield ray.get_runtime_context().get_node_id()


@pytest.fixture
def command(here: str, tmp_path: Path) -> Iterator[Command]:
    """The service, whose workers reserve one CPU of each node."""
    address = ray.get_runtime_context().gcs_address
    options = ["--cluster", "ray", "--address", address, f"--worker-cpus={OFFERED}", "--worker-memory=256m"]
    command = Command(tmp_path, "serve", ["serve", "--port", "0", *options])
    yield command
    command.stop()


@contextmanager
def another_node() -> Iterator[str]:
    """A second node joins; returns its id. It is lost without a word."""
    from ray._private.node import Node as RayNode
    from ray._private.parameter import RayParams

    address = ray.get_runtime_context().gcs_address
    of_this_machine = {"node_manager_port": 0, "include_log_monitor": False, "dashboard_agent_listen_port": None}
    memory, ports = {"object_store_memory": 80 << 20}, {"min_worker_port": 0, "max_worker_port": 0}
    own = {"num_cpus": int(CPUS), "num_gpus": 0, "setup_worker_path": forked_worker.__file__}
    known = set(free())
    params = RayParams(gcs_address=address, redis_address=address, **of_this_machine, **memory, **ports, **own)
    node = RayNode(params, head=False, shutdown_at_exit=False, spawn_reaper=False)
    try:
        until(lambda: set(free()) - known)
        (joined,) = set(free()) - known
        yield joined
    finally:
        node.kill_all_processes(check_alive=False)


def free() -> dict[str, float]:
    """The CPUs of each live node that nobody has reserved."""
    from ray._private.state import available_resources_per_node

    found = available_resources_per_node()
    return {each["NodeID"]: found.get(each["NodeID"], {}).get("CPU", 0.0) for each in ray.nodes() if each["Alive"]}


def until(true: Callable[[], object], what: str = "it did not happen") -> None:
    """Wait until something is true."""
    end = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def actors() -> set[int]:
    """The processes that are workers. One that a worker has just forked has its name until it is another program."""
    pids = {int(folder.name) for folder in Path("/proc").glob("[0-9]*")}
    found = {pid for pid in pids if "ray::SandboxWorker" in str(processes.command_line(pid))}
    return found.difference(*map(processes.below, found))


def workers(service: Service) -> dict[str, dict[str, Any]]:
    """Those that the service knows, by name."""
    return {each["name"]: each for each in service.get("/apis/ale/v1/status").json()["workers"]}


def running(service: Service) -> dict[str, str]:
    """The sandboxes that run, and on which worker."""
    found = service.get("/apis/ale/v1/sandboxes").json()["sandboxes"]
    return {each["id"]: each["worker"] for each in found if each["state"] == "running"}


def start(service: Service) -> str:
    """Start a sandbox; returns its id."""
    answer = service.post(START, SMALL).json()
    assert answer["status"] == "Success", (answer, service.logs())
    return str(answer["result"]["sandbox_id"])


def served_by(command: Command, count: int = 1) -> Service:
    """The service, once it has so many workers."""
    service = Service(command.wait_for("ROCK service: "), command.log.parent)
    until(lambda: len(workers(service)) == count, service.logs())
    return service


def processes_of(command: Command) -> set[int]:
    """All of a service: its own, those of its workers, and what runs in sandboxes."""
    roots = {command.process.pid, *actors()}
    return roots.union(*map(processes.below, roots))


def test_each_node_has_a_worker_while_it_is_there_and_the_end_leaves_nothing(here: str, command: Command) -> None:
    service = served_by(command)
    (first,) = workers(service)
    with another_node() as joined:
        until(lambda: len(workers(service)) == 2, service.logs())
        (second,) = workers(service).keys() - {first}
        assert second == f"{first}-{joined[:8]}", "two nodes of one machine"
        assert {each["cpus"]["offered"] for each in workers(service).values()} == {OFFERED}
        until(lambda: free() == {here: CPUS - OFFERED, joined: CPUS - OFFERED}, "Ray counts it as free")
        while set(running(service).values()) != {first, second}:
            start(service)
        for sandbox_id in running(service):
            answer = service.post(EXECUTE, {"sandbox_id": sandbox_id, "command": ["sh", "-c", "exit 7"]}).json()
            assert answer["result"]["exit_code"] == 7
        (lost,) = (each for each, worker in running(service).items() if worker == second)
        stays = running(service).keys() - {lost}
    until(lambda: workers(service).keys() == {first}, service.logs())
    assert running(service).keys() == stays
    status = service.get(f"/apis/envs/sandbox/v1/get_status?sandbox_id={lost}&include_all_states=true").json()
    assert status["result"]["state_history"][-1]["event"] == "lost"
    until(lambda: "has left Ray" in service.logs(), service.logs())
    left = processes_of(command)
    command.stop()
    until(lambda: not processes.running(left), str(left))
    until(lambda: free() == {here: CPUS}, "Ray counts it as taken")


def test_a_worker_that_dies_is_started_again_and_a_killed_service_leaves_nothing(here: str, command: Command) -> None:
    service = served_by(command)
    lost, (actor,) = start(service), actors()
    Command.kill_process(actor)
    until(lambda: lost not in running(service), "its sandbox is still reported alive")
    again = start(service)
    assert running(service).keys() == {again}
    assert "It will be started again" in service.logs()
    left = processes_of(command)
    assert len(left) > len(actors()) + 2, "the worker has a sandbox"
    command.kill()
    until(lambda: not processes.running(left), str(left))
    until(lambda: free() == {here: CPUS}, "Ray counts it as taken")


def test_a_service_at_a_loopback_address_has_workers_on_its_own_machine_alone() -> None:
    here, twin, other = Node("1", "a", "10.0.0.7"), Node("2", "a", "10.0.0.7"), Node("3", "b", "10.0.0.8")
    assert describe_distance(twin, here, "http://127.0.0.1:8080") == ""
    assert "10.0.0.8" in describe_distance(other, here, "http://127.0.0.1:8080")
    assert describe_distance(other, here, at_address("http://0.0.0.0:8080", here.address)) == ""
    assert at_address("http://[::]:8080", "fd00::7") == "http://[fd00::7]:8080"


async def test_while_rays_head_does_not_answer_no_node_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("the head is away")

    monkeypatch.setattr(nodes_module, "read_nodes", fail)
    workers, nodes = NodeWorkers(WorkerSettings(), {}, False), {"1": Node("1", "a", "10.0.0.7")}
    assert [await workers._look_again(nodes) for _ in range(2)] == [nodes, nodes]
    assert caplog.text.count("the head is away") == 1
    monkeypatch.setattr(nodes_module, "SILENT_S", -1.0)
    with pytest.raises(SandboxError, match="the head is away"):
        await workers._look_again(nodes)


def test_without_ray_a_sentence_says_what_to_install() -> None:
    code = f"import sys; sys.modules['ray'] = None; {ALE}"
    done = subprocess.run(
        [sys.executable, "-c", code, "rock", "serve", "--cluster", "ray"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "pip install 'ale-plugin-rock[ray]'" in done.stderr
    assert "Traceback" not in done.stderr
