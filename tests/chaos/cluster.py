"""Makes runs on two Ray nodes, damages them, and checks that nothing was lost, trained on twice, or left behind.

    python tests/chaos/cluster.py --runs 100 --seed 1 --table tests/chaos/cluster_results.md

1. Each run has two engines, two ranks and two rollout workers as actors on both nodes; half of the runs are
   asynchronous. It gets one fault or two (`faults.py`), each at a random moment of its loop. One that ends with an
   error must say so in a sentence, and is resumed.
2. It must be complete within a time, or it counts as a deadlock. Then `checks.py` says what must hold of what was
   trained on, and `nodes.py` that no actor, process or file is left.
3. A fault's time to recover is from the fault (from the resume, if the run's process was killed) until the next step
   that was trained on and not undone (or the end of the run, if there is none).
4. All of it is in namespaces of its own (`namespaces.py`). What is shared stays: the nodes, the policy that all runs
   begin with, and the process that has imported what a run's process needs, from which these are forked.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sqlite3
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import namespaces
from chaos import WARM
from checks import KEPT, broken, find_leftovers, find_training_faults
from faults import FAULTS
from nodes import Nodes
from support.forked_ale import CONTEXT, IMPORTS, ForkedAle

from ale_local.sandbox_records import reclaim
from ale_sandbox.host.owned_folders import state_folder

RATIOS = (2, 0)
STEPS, PROMPTS = 10, 2
LAST, STEP_S = 6, 0.5
"""The last step after which a fault comes, and within how many seconds: some steps are to come after it."""
DISK_MIB = 64
LIMIT_S = 300.0
"""A run, with what it is resumed, must be complete after this time."""
RESUMES = 3
"""A run that fails more often by itself has not recovered."""
STALL_S, PAUSED_STALL_S = 60.0, 6.0
"""`rl.stall_s`, without and with a process that stands still for good."""
TWO_FAULTS = 0.3
SHOWN = 5
PLACES = "engine: {replicas: 2}, trainer: {ranks: 2}, rollout: {workers: 2}"
HEAD = """# Runs on a cluster whose parts were killed, paused or short of room

Made by `make chaos-cluster` (seed {seed}). `cluster.py` says how runs are made and what the times are, `faults.py` what
is done to them, and `checks.py` and `nodes.py` what is checked. A run with two faults counts for both.
"""


@dataclass(frozen=True)
class Moment:
    """When a fault comes: so many seconds after a step was trained on."""

    name: str
    step: int
    seconds: float


@dataclass
class Outcome:
    """What became of a run: what is wrong with it, in sentences, and the seconds to recover from each of its faults."""

    wrong: list[str] = field(default_factory=list)
    recovered: list[tuple[str, float]] = field(default_factory=list)


class Deadlock(Exception):
    """A run was not complete in time."""


class DamagedRun:
    """A run, from its start until it is complete. See `faults.Run`."""

    def __init__(self, nodes: Nodes, folder: Path, logs: Path, arguments: Sequence[str]) -> None:
        self.nodes, self.folder, self.disk = nodes, folder, folder.parent
        self._logs, self._starts, self._failures = logs, 0, 0
        self._until = time.monotonic() + LIMIT_S
        self._start(arguments)

    def _start(self, arguments: Sequence[str]) -> None:
        printed = self._logs / str(self._starts)
        printed.mkdir(parents=True)
        self._process = ForkedAle(["run", *arguments], printed)
        self._starts += 1

    def goes_on(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self.end()
        self._start(["--resume", str(self.folder)])

    def end(self) -> None:
        """Kill its process."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(10)

    def wait_for_step(self, step: int) -> None:
        """Wait until it goes on and a step was trained on. Raises `AssertionError` if it is complete, `Deadlock` if the
        step does not come."""
        while self.steps() < step or not self.goes_on():
            assert not self._has_ended_well(), "the run was complete before the fault came"

    def finish(self) -> None:
        """Wait until it is complete. Raises `AssertionError` if it fails too often, `Deadlock` if it does neither."""
        while not self._has_ended_well():
            pass

    def _has_ended_well(self) -> bool:
        """Look whether it is complete, and wait a little if it is not; one that has failed is resumed."""
        if self.goes_on():
            if time.monotonic() > self._until:
                raise Deadlock(f"it was not complete within {LIMIT_S:.0f} s; its last words: {self._last_line()!r}")
            time.sleep(0.05)
            return False
        done = self._process.wait(0)
        if done.returncode == 0:
            return True
        said = self._last_line()
        assert said.startswith("error: "), f"it ended with {done.returncode}: {said}"
        self._failures += 1
        assert self._failures <= RESUMES, f"it failed {self._failures} times: {said}"
        self._start(["--resume", str(self.folder)])
        return False

    def _last_line(self) -> str:
        printed = self._logs / str(self._starts - 1) / "err"
        lines = printed.read_text().splitlines() if printed.exists() else []
        return lines[-1] if lines else ""

    def steps(self) -> int:
        """Return how many steps were trained on."""
        done = self._ask("SELECT step FROM metrics WHERE stage = 'rl' AND name = 'success'")
        return max((step for (step,) in done), default=0)

    def rollouts(self) -> set[str]:
        """Return the rollouts that are stored."""
        return {id for (id,) in self._ask("SELECT id FROM trajectories")}

    def recovery(self, began: float) -> float:
        """Return the seconds from a moment until the next step was stored, or the complete run's end if none was."""
        steps = "SELECT MIN(time) FROM metrics WHERE stage = 'rl' GROUP BY step"
        stored = self._ask(f"{steps} UNION SELECT MAX(time) FROM events WHERE kind = 'run_finished'")
        return min(when for (when,) in stored if when > began) - began

    def _ask(self, sql: str) -> list[tuple]:
        try:
            with closing(sqlite3.connect(f"file:{self.folder / 'run.db'}?mode=ro", uri=True)) as db:
                return db.execute(sql).fetchall()
        except sqlite3.OperationalError:  # it has not begun
            return []


class ClusterChaos:
    """The nodes, and the runs on them. Folders of runs are on a small disk, all else is in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.disk, self.temporary = folder, folder / "disk", folder / "tmp"
        self.file = folder / "run.yaml"
        self.file.write_text(WARM)
        self.temporary.mkdir()
        namespaces.mount_memory(self.disk, DISK_MIB)
        namespaces.mount_memory(Path("/dev/shm"), 4096)
        os.environ |= {"TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1"}
        tempfile.tempdir = None  # it is read again
        self.nodes = Nodes(folder / "ray")
        CONTEXT.set_forkserver_preload([*IMPORTS, "ray", "ale_ray.cluster"])
        warm = ForkedAle(["run", str(self.file), "--out", str(folder / "warm")], folder).wait(LIMIT_S)
        assert warm.returncode == 0, warm.stderr
        self.others = {1, os.getpid(), forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid}
        self.files = set(self.temporary.rglob("*"))

    def attempt(self, number: int, ratio: int, moments: Sequence[Moment], rng: random.Random) -> Outcome:
        """Make a run and damage it; what is kept of one with which something is wrong is in the folder `failed`."""
        outcome = Outcome()
        target, logs = self.disk / f"run-{number}", self.folder / "failed" / f"run-{number}"
        run = DamagedRun(self.nodes, target, logs / "output", self._arguments(number, target, ratio, moments))
        try:
            self._damage(run, moments, rng, outcome)
        except (Deadlock, AssertionError) as error:
            outcome.wrong.append(f"{type(error).__name__}: {error}")
            run.end()
        else:
            with closing(sqlite3.connect(target / "run.db")) as db:
                outcome.wrong += find_training_faults(db, ratio, STEPS, PROMPTS)
        self.nodes.mend()
        outcome.wrong += self.nodes.find_leftovers(self.others)
        outcome.wrong += find_leftovers(target) + self._find_files()
        if outcome.wrong:
            self.nodes.end_leftovers(self.others)
            shutil.copytree(target, logs / "run")
        else:
            shutil.rmtree(logs)
        shutil.rmtree(target)
        return outcome

    def _damage(self, run: DamagedRun, moments: Sequence[Moment], rng: random.Random, outcome: Outcome) -> None:
        began, before = [], set()
        for moment in moments:
            run.wait_for_step(moment.step)
            time.sleep(moment.seconds)
            run.wait_for_step(moment.step)  # it may have failed meanwhile, from a fault before
            before |= run.rollouts()
            began.append((moment.name, FAULTS[moment.name](run, rng)))
        run.finish()
        outcome.recovered += [(name, run.recovery(when)) for name, when in began]
        lost = before - run.rollouts()
        outcome.wrong += broken((not lost, f"rollouts that were stored before a fault are lost: {lost}"))

    def _find_files(self) -> list[str]:
        reclaim(state_folder("local"))  # sandboxes' files of a process that was killed stay until the next one starts
        left = [path for path in self.temporary.rglob("*") if path not in self.files]
        left = [path for path in left if not any(path.match(kept) for kept in KEPT)]
        return broken((not left, f"{len(left)} files are left: {[str(path) for path in left[:SHOWN]]}"))

    def _arguments(self, number: int, target: Path, ratio: int, moments: Sequence[Moment]) -> list[str]:
        stall_s = PAUSED_STALL_S if any("for good" in moment.name for moment in moments) else STALL_S
        return [
            str(self.file), "sft=null", "model.scratch=null", f"model.path={self.folder / 'warm' / 'model' / 'sft'}",
            f"rl={{steps: {STEPS}, prompts_per_step: {PROMPTS}}}", f"rl.async_ratio={ratio}",
            f"rl.checkpoint_every={1 + number // len(RATIOS) % 2}", f"rl.stall_s={stall_s}",
            f"cluster={{use: ray, address: '{self.nodes.address}', {PLACES}}}", "--out", str(target),
        ]  # fmt: skip


def choose_moments(rng: random.Random, number: int, names: Sequence[str], in_each: int = 1) -> list[Moment]:
    """Return the faults of a run: so many in turn, after the first round sometimes with another one."""
    first = number * in_each
    chosen = [names[place % len(names)] for place in range(first, first + in_each)]
    if first >= len(names) and rng.random() < TWO_FAULTS:
        chosen.append(rng.choice(names))
    steps = sorted(rng.randint(1, LAST) for _ in chosen)
    return [Moment(name, step, rng.uniform(0.0, STEP_S)) for name, step in zip(chosen, steps, strict=True)]


def make_table(names: Sequence[str], outcomes: Sequence[tuple[list[Moment], Outcome]]) -> list[str]:
    """Return the lines of the table: a row a fault."""
    seconds: dict[str, list[float]] = defaultdict(list)
    rows = ["| fault | runs | failed | seconds to recover, median | largest |", "| --- | --- | --- | --- | --- |"]
    for _, outcome in outcomes:
        for name, value in outcome.recovered:
            seconds[name].append(value)
    for name in names:
        had = [outcome for moments, outcome in outcomes if any(moment.name == name for moment in moments)]
        failed = sum(bool(outcome.wrong) for outcome in had)
        times = [f"{measure(seconds[name]):.1f}" if seconds[name] else "" for measure in (statistics.median, max)]
        rows.append(f"| {name} | {len(had)} | {failed} | {' | '.join(times)} |")
    failed = sum(bool(outcome.wrong) for _, outcome in outcomes)
    return [*rows, f"| all | {len(outcomes)} | {failed} | | |"]


def main() -> int:
    """Make the runs, print and write the table; returns the number of runs with which something was wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=len(FAULTS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first run, to make one of them again")
    parser.add_argument("--faults", default=",".join(FAULTS), help="which faults, with commas between them")
    parser.add_argument("--in-each", type=int, default=1, help="how many faults in turn a run has at least")
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    names = options.faults.split(",")
    if unknown := set(names) - FAULTS.keys():
        parser.error(f"there are no faults {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    folder = namespaces.enter()
    chaos = ClusterChaos(folder)
    outcomes = []
    for number in range(options.first, options.first + options.runs):
        rng = random.Random(f"{options.seed}-{number}")
        ratio = RATIOS[number % len(RATIOS)]
        moments = choose_moments(rng, number, names, options.in_each)
        began = time.monotonic()
        outcome = chaos.attempt(number, ratio, moments, rng)
        outcomes.append((moments, outcome))
        times = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in outcome.recovered)
        print(f"run {number}, ratio {ratio}: {time.monotonic() - began:.0f} s; recovered: {times}", flush=True)
        for sentence in outcome.wrong:
            print(f"run {number} ({moments}): {sentence}; see {folder / 'failed' / f'run-{number}'}", flush=True)
    lines = make_table(names, outcomes)
    print("\n".join(lines))
    if options.table is not None:
        options.table.write_text("\n".join([HEAD.format(seed=options.seed), *lines, ""]))
    return sum(bool(outcome.wrong) for _, outcome in outcomes)


if __name__ == "__main__":
    sys.exit(min(1, main()))
