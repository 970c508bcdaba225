"""The faults: each does its damage to a run that goes on, and returns from when its recovery is counted.

An engine's server is not among them: no engine with a server starts within seconds. What a pool does when servers are
killed is tested with small ones (`libs/engines/tests/pool`), and with vLLM's (`plugins/engine_vllm/tests`).
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from nodes import ROLES, Nodes

from ale_testing.processes import below, command_line

SLOW_S, STOPPED_S, RUNNING_S = 4.0, 0.2, 0.05
"""For how long a node is slow, and in which turns its processes stand still and run then."""
PAUSED_S = 4.0
FULL_S = 20.0
"""How long a disk stays full, if the run does not end before."""
SANDBOX_S = 20.0


class Run(Protocol):
    """A run, as a fault sees it."""

    nodes: Nodes
    disk: Path
    """The file system that holds its folder."""

    def goes_on(self) -> bool:
        """Whether its process has not ended."""
        ...

    def kill(self) -> None:
        """Kill its process, and resume it."""
        ...


Fault = Callable[[Run, random.Random], float]


def _signal_actor(role: str, number: int) -> Fault:
    def inflict(run: Run, rng: random.Random) -> float:
        while not (pids := run.nodes.actors(role)):  # an earlier fault has ended them
            assert run.goes_on(), f"there was no {role} left"
            time.sleep(0.05)
        began = time.time()
        with suppress(ProcessLookupError):
            os.kill(rng.choice(pids), number)
        return began

    return inflict


def _kill_sandbox(run: Run, rng: random.Random) -> float:
    until = time.monotonic() + SANDBOX_S
    while run.goes_on() and time.monotonic() < until:
        started = {pid for worker in run.nodes.actors("worker") for pid in below(worker)}
        found = sorted(pid for pid in started if command_line(pid)[:1] == ["bwrap"])
        if found:
            began, pid = time.time(), rng.choice(found)
            for each in (*below(pid), pid):
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            return began
    raise AssertionError("there was no sandbox to kill")


def _kill_raylet(run: Run, rng: random.Random) -> float:
    began = time.time()
    run.nodes.kill_raylet()
    return began


def _kill_driver(run: Run, rng: random.Random) -> float:
    run.kill()
    return time.time()


def _fill_disk(run: Run, rng: random.Random) -> float:
    filler = run.disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 20)):
            pass
    began, until = time.time(), time.monotonic() + FULL_S
    while run.goes_on() and time.monotonic() < until:
        time.sleep(0.05)
    filler.unlink()
    return began


def _pause_actor(run: Run, rng: random.Random) -> float:
    began = _signal_actor(rng.choice(sorted(ROLES)), signal.SIGSTOP)(run, rng)
    time.sleep(PAUSED_S)
    for pid in (pid for role in ROLES for pid in run.nodes.actors(role)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    return began


def _slow_node(run: Run, rng: random.Random) -> float:
    began, until = time.time(), time.monotonic() + SLOW_S
    while time.monotonic() < until:
        pids = run.nodes.second_node()
        for number, seconds in ((signal.SIGSTOP, STOPPED_S), (signal.SIGCONT, RUNNING_S)):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(seconds)
    return began


FAULTS: dict[str, Fault] = {
    "engine killed": _signal_actor("engine", signal.SIGKILL),
    "worker killed": _signal_actor("worker", signal.SIGKILL),
    "rank killed": _signal_actor("rank", signal.SIGKILL),
    "sandbox killed": _kill_sandbox,
    "raylet killed": _kill_raylet,
    "run's process killed": _kill_driver,
    "disk full": _fill_disk,
    "slow node": _slow_node,
    "actor paused": _pause_actor,
    "worker paused for good": _signal_actor("worker", signal.SIGSTOP),
    "engine paused for good": _signal_actor("engine", signal.SIGSTOP),
    "rank paused for good": _signal_actor("rank", signal.SIGSTOP),
}
