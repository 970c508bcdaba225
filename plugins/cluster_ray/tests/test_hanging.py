"""Actors of a real Ray that hang are ended: so calls of them end, and all that they have started."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.ray_nodes import ENVIRONMENT, connected_nodes

os.environ |= ENVIRONMENT
pytest.importorskip("ray")

from ale.errors import EngineError
from ale.session.tokenizer import byte_tokenizer
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale.specs.engine import FolderTicket, PolicyVersion
from ale_engines.server.process import ServerProcess
from ale_ray import actor_lifecycle as actors
from ale_ray.actor_calls import ask
from ale_ray.actor_lifecycle import end_actor, start_actor
from ale_ray.engine_actor import EngineSpec
from ale_ray.engine_replica import RayReplica
from ale_testing.processes import running

OPTIONS: dict[str, Any] = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0, "max_concurrency": 100}

SERVER = """
import subprocess, sys, time
child = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(300)"]
subprocess.Popen(child, start_new_session=True, stdout=subprocess.PIPE).stdout.readline()
print("ready", flush=True)
time.sleep(300)
"""


def make_server_owner() -> type:
    """Return the class of an actor that starts a server as engines do. It is made here, so that it can be pickled: the
    actor's process cannot import this module."""

    class ServerOwner:
        async def start(self, folder: str) -> tuple[int, int]:
            """Return its process and that of the server, once the server has a child in a session of its own."""
            argv = [sys.executable, "-c", SERVER, folder]
            self.process = ServerProcess(argv, dict(os.environ), Path(folder) / "log", "it", [Path(folder) / "shm"])
            await self.process.start()
            while "ready" not in self.process.log_tail():  # noqa: ASYNC110 - a file has no events
                await asyncio.sleep(0.02)
            assert self.process.pid is not None
            return os.getpid(), self.process.pid

    return ServerOwner


@pytest.fixture(scope="module", autouse=True)
def connected() -> Iterator[None]:
    """A Ray of one node."""
    with connected_nodes(1, cpus=2):
        yield


async def until(true: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(limit_s):
        while not true():  # noqa: ASYNC110 - other processes have no events
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_server_and_all_its_processes_end_with_an_actor_that_is_ended_by_force(
    tmp_path: Path, stopped: bool
) -> None:
    (tmp_path / "shm").mkdir()
    actor = start_actor(make_server_owner(), f"owner {stopped}", OPTIONS)
    own, server = map(psutil.Process, await ask("the owner", actor.start.remote(str(tmp_path)), 60))
    family = [server, *server.children(recursive=True)]
    assert len(family) == 2
    if stopped:
        own.suspend()
    await end_actor("the owner", actor, None, limit_s=None)
    await until(lambda: not running({process.pid for process in (own, *family)}))
    await until(lambda: not (tmp_path / "shm").exists())


async def test_a_load_ends_when_the_process_of_its_engine_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = PluginChoice(use="scripted", settings={"answers": ["yes"]})
    spec = EngineSpec("scripted 0", 0, choice, DriverContext(), str, Path.cwd())
    async with RayReplica(spec, OPTIONS, 60.0, print, lambda engine: None) as replica:
        await replica.load_model(None, byte_tokenizer())
        process = psutil.Process(replica.facts.pid)
        monkeypatch.setattr(actors, "SILENT_S", 5.0)  # not before: a busy machine may need as long for the load
        process.suspend()
        async with asyncio.timeout(120):
            with pytest.raises(EngineError, match=r"^scripted 0 did not answer for 5 s, and was ended\.$"):
                await replica.load_weights(PolicyVersion(1, FolderTicket(Path("weights"))))
        monkeypatch.undo()  # the next one may be slow on a busy machine
        await replica.restart()
        assert replica.facts.pid != process.pid
        await replica.check()
        await until(lambda: not running({process.pid}))
