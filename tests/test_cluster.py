"""Runs over two Ray nodes, through the command line: they end as in one process, also when their parts are killed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil
import pytest
from ale_command import TINY, ale_in_a_process, forked_ale, summary_of
from support import forked_command
from support.ray_nodes import ray_nodes

pytestmark = [pytest.mark.slow, pytest.mark.bwrap]
PLACES = "engine: {replicas: 2}, trainer: {ranks: 2}, rollout: {workers: 2}"
ACTORS = ("EngineActor", "RolloutWorker", "RankActor")
LIMIT_S = 240
MANY = 14
"""Steps of a run to which a test does something after its first ones: it is to go on then, also if the test is late."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Two nodes on this machine, whose workers are forked: only the last test has those that Ray starts."""
    with ray_nodes(2, cpus=8) as address:
        yield address


def arguments(folder: Path, address: str, *more: str, places: str = PLACES) -> list[str | Path]:
    file = folder / "run.yaml"
    file.write_text(TINY.format(runs=folder / "runs"))
    cluster = f"cluster={{use: ray, address: '{address}', {places}}}"
    return ["run", file, cluster, *more, "--out", folder / "run"]


class Started:
    """A run that goes on while the test does something to it; it ends with its block."""

    def __init__(self, folder: Path, *words: str | Path) -> None:
        self.folder = folder / "run"
        self.output = folder / "output"
        with self.output.open("wb") as output:
            command = [str(forked_command.program()), *map(str, words)]
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:  # the test has failed: the tests after it need its nodes
            self.process.terminate()
            self.process.wait(LIMIT_S)

    def roles(self, role: str) -> list[dict[str, Any]]:
        data = json.loads((self.folder / "cluster" / "roles.json").read_text())
        return [row for row in data["roles"] if row["role"] == role]

    def process_of(self, role: str) -> int:
        """The process of the first of these; the run writes it a moment after it has started it."""
        self.wait_for(lambda: self.roles(role)[0]["pid"] > 0)
        return int(self.roles(role)[0]["pid"])

    def steps(self) -> int:
        """How many steps have been trained."""
        if not (self.folder / "run.db").exists():
            return 0
        with sqlite3.connect(f"file:{self.folder / 'run.db'}?mode=ro", uri=True) as db:
            found = db.execute("SELECT MAX(step) FROM metrics WHERE stage = 'rl' AND name = 'success'")
            return found.fetchone()[0] or 0

    def wait_for_step(self, step: int) -> None:
        """Wait until a step has been trained."""
        self.wait_for(lambda: self.steps() >= step)

    def wait_for(self, true: Callable[[], bool]) -> None:
        """Wait until a condition is true."""
        until = time.monotonic() + LIMIT_S
        while not true():
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < until, self.output.read_text()
            time.sleep(0.1)

    def end(self) -> str:
        """Wait until the run has ended well; returns its output."""
        code = self.process.wait(LIMIT_S)
        said = self.output.read_text()
        assert code == 0, said
        return said


def check_trained_once(folder: Path, steps: int, prompts: int) -> None:
    with sqlite3.connect(folder / "run.db") as db:
        trained = db.execute("SELECT DISTINCT ordinal FROM trained JOIN trajectories ON id = trajectory ORDER BY 1")
        assert [ordinal for (ordinal,) in trained] == list(range(steps * prompts))
    check_nothing_trained_twice(folder)


def check_nothing_trained_twice(folder: Path) -> None:
    with sqlite3.connect(folder / "run.db") as db:
        twice = db.execute("SELECT trajectory FROM trained GROUP BY trajectory HAVING COUNT(*) > 1").fetchall()
        assert twice == []


def actors(name: str = "") -> list[psutil.Process]:
    """The actors that live on the nodes of this test, of a class if its name is given."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if (process.cmdline() or [""])[0].startswith(tuple(f"ray::{each}" for each in ACTORS if name in each)):
                found.append(process)
    return found


def scale(run: Started, wish: str) -> str:
    """What `ale cluster scale` says."""
    done = forked_ale("cluster", "scale", run.folder, wish)
    assert done.returncode == 0, f"{done.stderr}\n{run.output.read_text()}"
    return done.stdout.splitlines()[-1]


def states(run: Started) -> dict[str, str]:
    """What `ale cluster status` says of the engines and workers of a run that goes on."""
    shown = json.loads(forked_ale("cluster", "status", run.folder, "--json").stdout)
    assert shown["state"] == "running"
    return {row["name"]: row["state"] for row in shown["roles"] if row["role"] != "trainer"}


def wait_for_no_actors() -> None:
    until = time.monotonic() + 120
    while actors() and time.monotonic() < until:
        time.sleep(0.2)
    assert actors() == []


def test_a_run_on_two_nodes_ends_as_one_in_a_process(address: str, tmp_path: Path) -> None:
    done = forked_ale(*arguments(tmp_path, address), timeout_s=LIMIT_S)
    summary = summary_of(done)
    assert summary["status"] == "completed"
    assert summary["final_policy_version"] == 3, "one after sft, and two steps of rl"
    assert summary["failures"] == {}
    check_trained_once(tmp_path / "run", 2, 2)
    roles = json.loads((tmp_path / "run" / "cluster" / "roles.json").read_text())
    assert roles["state"] == "ended"
    assert sorted(row["role"] for row in roles["roles"]) == ["engine"] * 2 + ["rollout"] * 2 + ["trainer"] * 2
    assert len({row["node"] for row in roles["roles"]}) == 2
    wait_for_no_actors()


def test_engines_and_workers_that_are_killed_come_back_and_nothing_is_lost(address: str, tmp_path: Path) -> None:
    more = (f"rl.steps={MANY}", "rl.async_ratio=2", "eval.every=0")
    with Started(tmp_path, *arguments(tmp_path, address, *more)) as run:
        run.wait_for_step(1)
        for pid in (run.process_of("rollout"), run.process_of("engine")):
            os.kill(pid, signal.SIGKILL)
        said = run.end()
        assert "worker 0 has died and is started again" in said
        assert "torch 0 is started again" in said
        check_trained_once(run.folder, MANY, 2)
    wait_for_no_actors()


def test_a_worker_that_stands_still_is_named_and_started_again(address: str, tmp_path: Path) -> None:
    places = "engine: {replicas: 1}, trainer: {ranks: 0}, rollout: {workers: 2}"
    more = (f"rl.steps={MANY}", "rl.stall_s=12", "eval.every=0")  # long enough for a worker to show that it moves
    with Started(tmp_path, *arguments(tmp_path, address, *more, places=places)) as run:
        run.wait_for_step(1)
        os.kill(run.process_of("rollout"), signal.SIGSTOP)
        said = run.end()
        # Where it waited for an engine, that may as well be what hangs.
        assert re.search(r"Nothing has moved for 12 s: (a rollout worker|the engine) hangs\.", said), said
        assert "worker 0 does not answer any more and is started again" in said
        check_trained_once(run.folder, MANY, 2)
    wait_for_no_actors()


def test_engines_and_workers_are_added_and_removed_while_the_run_goes_on_also_after_a_lost_rank(
    address: str, tmp_path: Path
) -> None:
    places = "engine: {replicas: 1}, trainer: {ranks: 1}, rollout: {workers: 1}"
    more = ("rl.steps=5000", "rl.checkpoint_every=1", "eval.every=0")
    with Started(tmp_path, *arguments(tmp_path, address, *more, places=places)) as run:
        run.wait_for_step(1)
        assert scale(run, "engine=2") == "The run has 2 engines now: torch 0, torch 1."
        assert scale(run, "rollout=2") == "The run has 2 rollout workers now: worker 0, worker 1."
        serving = dict.fromkeys(("torch 0", "torch 1", "worker 0", "worker 1"), "serving")
        run.wait_for(lambda: states(run) == serving)  # each step an engine loads weights for a moment
        before = run.roles("engine") + run.roles("rollout")
        actors("RankActor")[0].kill()

        def all_are_new() -> bool:
            now = run.roles("engine") + run.roles("rollout")
            pids = {row["pid"] for row in now if row["state"] == "serving"} - {row["pid"] for row in before}
            return [row["name"] for row in now] == [row["name"] for row in before] and len(pids) == 4

        run.wait_for(all_are_new)
        assert scale(run, "engine=1") == "The run has 1 engine now: torch 0."
        refused = forked_ale("cluster", "scale", run.folder, "trainer=3")
        assert "The trainer's ranks cannot change while it trains" in refused.stderr
        run.process.terminate()
        assert run.process.wait(LIMIT_S) == 143, run.output.read_text()
        assert "The run goes on from its checkpoint step_" in run.output.read_text()
        check_nothing_trained_twice(run.folder)
    wait_for_no_actors()
    gone = forked_ale("cluster", "scale", tmp_path / "run", "engine=2")
    assert "No run answers" in gone.stderr


@pytest.mark.parametrize(("lent", "ratio"), [(1, 2), (2, 0)])
def test_engines_beside_the_ranks_sleep_while_these_train(address: str, tmp_path: Path, lent: int, ratio: int) -> None:
    """With two of two, nothing but the lent engines serves the evaluations that go on while the trainer trains."""
    more = (f"rl.multiplex={lent}", f"rl.async_ratio={ratio}", "rl.steps=4", "eval.every=1")
    places = "engine: {replicas: 2}, trainer: {ranks: 2}"
    done = forked_ale(*arguments(tmp_path, address, *more, places=places), timeout_s=LIMIT_S)
    assert summary_of(done)["status"] == "completed"
    check_trained_once(tmp_path / "run", 4, 2)
    with sqlite3.connect(tmp_path / "run" / "run.db") as db:
        found = db.execute("SELECT name, value FROM metrics WHERE stage = 'rl' AND name IN ('lent', 'switch_s')")
        values: dict[str, list[float]] = {"lent": [], "switch_s": []}
        for name, value in found:
            values[name].append(value)
    assert len(values["lent"]) == 4
    assert sum(values["switch_s"]) > 0
    if lent == 2:
        assert values["lent"] == [1.0] * 4, "the next batch must be sampled"
    wait_for_no_actors()


def test_rollouts_alone_need_no_room_for_the_trainer(address: str, tmp_path: Path) -> None:
    from ale_testing.tiny_model import write_tiny_model

    write_tiny_model(tmp_path / "model", 0)
    places = "engine: {replicas: 1}, trainer: {ranks: 2, cpus: 9}, rollout: {workers: 1}"
    more = ("~model.scratch", f"model.path={tmp_path / 'model'}", "rl.steps=1", "--only", "rollout")
    done = forked_ale(*arguments(tmp_path, address, *more, places=places), timeout_s=LIMIT_S)
    assert summary_of(done)["status"] == "completed"
    wait_for_no_actors()


OWN = """
from dataclasses import replace
from ale_engines.scripted import ScriptedEngine
from ale_tests import TestsReward

class Says(ScriptedEngine):
    pass

class Half(TestsReward):
    async def score(self, task, sandbox, trajectory):
        return replace(await super().score(task, sandbox, trajectory), value=0.5)
"""


def test_engines_and_workers_have_classes_of_a_file(address: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    own = ("engine={use: own.py:Says, answers: [done]}", "reward=own.py:Half", "eval=null", "trainer=null", "sft=null")
    alone = ("--only", "rollout", "rl={steps: 1, prompts_per_step: 2}", "model.scratch=null")
    words = arguments(tmp_path, address, *own, *alone, places="rollout: {workers: 1}")
    with contextlib.chdir(tmp_path):
        done = forked_ale(*words)
    assert summary_of(done)["rollouts"] == 4
    names = [row["name"] for row in json.loads((tmp_path / "run" / "cluster" / "roles.json").read_text())["roles"]]
    assert names[0] == "own.py:Says 0"


def test_more_engines_beside_the_ranks_than_there_are_are_refused(address: str, tmp_path: Path) -> None:
    places = "engine: {replicas: 2}, trainer: {ranks: 1}"
    done = forked_ale(*arguments(tmp_path, address, "rl.multiplex=2", places=places))
    assert done.returncode == 2
    assert "rl.multiplex is 2: each of these engines lies on the device of one rank" in done.stderr
    assert not (tmp_path / "run").exists(), "it is refused when the file is read"


def test_a_run_for_which_the_nodes_have_no_room_is_refused(address: str, tmp_path: Path) -> None:
    done = forked_ale(*arguments(tmp_path, address, places="engine: {replicas: 3, cpus: 9}"))
    assert done.returncode == 2
    assert "no node has room left for one of engine (9 CPUs, 0 GPUs)" in done.stderr
    assert "2 nodes (8 CPUs and 0 GPUs; 8 CPUs and 0 GPUs)" in done.stderr


def folders_without_owner() -> set[Path]:
    """The temporary folders of runs that have ended, but not those of other tests' runs."""
    found = set()
    for lock in Path("/tmp").glob("ale-ray-*/.owner"):
        with suppress(OSError), lock.open() as file:  # it is locked, or has just been removed
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if lock.exists():  # else its owner has removed it between these two, and then let it go
                found.add(lock.parent)
    return found


def test_without_an_address_a_run_has_a_ray_of_its_own_and_leaves_nothing(tmp_path: Path) -> None:
    before = folders_without_owner()
    file = tmp_path / "run.yaml"
    file.write_text(TINY.format(runs=tmp_path / "runs"))
    places = "engine: {replicas: 1}, trainer: {ranks: 0}, rollout: {workers: 1}"
    done = ale_in_a_process("run", file, f"cluster={{use: ray, {places}}}", "--out", tmp_path / "run")
    assert summary_of(done)["status"] == "completed"
    assert folders_without_owner() <= before
    wait_for_no_actors()
