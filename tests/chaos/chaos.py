"""Kills runs with `kill -9` and resumes them until they are complete; then checks that nothing was lost or done twice.

    python tests/chaos/chaos.py --runs 200 --seed 1 --table tests/chaos/results.md

1. Each run is killed once or twice: at a uniform instant, or at a named point (`points.py`), which may lie in a resume.
   Half of the runs are synchronous, half asynchronous. Those with a named point leave a checkpoint each step, the
   others each one, two or three, so that several steps are undone.
2. A run is `ale run` in a process that is forked from this one, which has imported everything: so a run takes a second
   or two. This process computes nothing itself, so that it has no threads when it forks.
3. `checks.py` says what must hold at the end.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # where `support` is
sys.path.insert(0, str(Path(__file__).parent))
import points
from checks import Unbroken, check_run, read_unbroken
from support.forked_ale import IMPORTS

ALONE = ("rollout.concurrency=1", "engine.max_batch=1")
"""A synchronous run with these, and without shared prefixes, is the same to the last digit however often it is
interrupted: else what is in the engine's cache decides in which order numbers are added."""
RATIOS = (0, 2)
STEPS, PROMPTS = 5, 2
WARM = """
name: chaos
model:
  scratch: {hidden_size: 32, layers: 1, heads: 2, kv_heads: 1, vocab_size: 400, max_length: 512}
tasks: {use: bash, families: [write, count], wrong_turn_rate: 0.4}
engine: {use: torch, threads: 1, max_batch: 4}
trainer: {use: torch, threads: 1}
algorithm: {use: ipa, group_size: 2}
rollout: {concurrency: 4, max_calls: 2, max_tokens: 16, max_context: 512}
sft: {demonstrations: {count: 40, keep_failed: true}, steps: 40, batch_size: 8, lr: 4.0e-3}
eval: {episodes: 2, every: 2}
"""
LOOP = ("sft=null", "model.scratch=null", f"rl={{steps: {STEPS}, prompts_per_step: {PROMPTS}}}")
LIMIT_S = 60.0
HEAD = """# Runs that were killed with `kill -9` and resumed

Made by `make chaos` (seed {seed}). `chaos.py` says how runs are killed, `points.py` where, and `checks.py` what is
checked.
"""


@dataclass(frozen=True)
class Kill:
    """When a process is killed: after so many seconds, or at the nth time that it comes to a named point."""

    seconds: float = 0.0
    point: str = ""
    nth: int = 1

    def __str__(self) -> str:
        return self.point or "uniform instant"


class Chaos:
    """The runs, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "run.yaml"
        self.file.write_text(WARM)
        self.unbroken: dict[int, Unbroken] = {}

    def prepare(self) -> None:
        """Make the policy that all runs begin with, and one unbroken run of each sort."""
        warm = self.folder / "warm"
        self._end(self._start(warm, [str(self.file), "--out", str(warm)], 1), warm)
        for ratio in RATIOS:
            target = self.folder / f"unbroken-{ratio}"
            began = time.monotonic()
            self._end(self._start(target, self._arguments(target, ratio), ratio), target)
            self.unbroken[ratio] = read_unbroken(target, time.monotonic() - began)

    def attempt(self, number: int, ratio: int, kills: Sequence[Kill]) -> tuple[list[str], float]:
        """Make a run that is killed so; returns what is wrong with it, and the longest time to progress."""
        target = self.folder / f"run-{number}"
        every = 1 if any(kill.point for kill in kills) else 1 + number // len(RATIOS) % 3
        arguments = self._arguments(target, ratio, every)
        for kill in kills:
            pid = self._start(target, arguments, ratio, kill)
            if kill.seconds:
                time.sleep(kill.seconds)
                os.kill(pid, signal.SIGKILL)
            self._wait(pid, target)
            if (target / "config.yaml").exists():
                arguments = ["--resume", str(target)]
            else:  # it was killed before it began
                shutil.rmtree(target, ignore_errors=True)
        if not (target / "summary.json").exists() or '"completed"' not in (target / "summary.json").read_text():
            self._end(self._start(target, arguments, ratio), target)
        found = check_run(target, self._temporary(target), self.unbroken[ratio], ratio, STEPS, PROMPTS)
        if not found.wrong:
            for path in (target, self._temporary(target)):
                shutil.rmtree(path)
        return found.wrong, found.slowest_start_s

    def _arguments(self, target: Path, ratio: int, every: int = 1) -> list[str]:
        policy = f"model.path={self.folder / 'warm' / 'model' / 'sft'}"
        settings = (*LOOP, policy, *(() if ratio else ALONE))
        settings += (f"rl.async_ratio={ratio}", f"rl.checkpoint_every={every}")
        return [str(self.file), *settings, "--out", str(target)]

    def _temporary(self, target: Path) -> Path:
        return target.with_name(f"{target.name}.tmp")

    def _start(self, target: Path, arguments: Sequence[str], ratio: int, kill: Kill | None = None) -> int:
        """Fork a process that runs `ale run` with these arguments."""
        self._temporary(target).mkdir(exist_ok=True)
        pid = os.fork()
        if pid:
            return pid
        os.setsid()
        log = os.open(target.with_name(f"{target.name}.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        os.environ["TMPDIR"] = tempfile.tempdir = str(self._temporary(target))
        if kill is not None and kill.point:
            points.arm(kill.point, kill.nth)
        from ale.cli.main import main
        from ale_engine_torch.llama_decoder import LlamaDecoder

        LlamaDecoder.prefix_reuse = ratio > 0
        sys.argv = ["ale", "run", *arguments]
        try:
            main()
        except SystemExit as end:
            os._exit(end.code if isinstance(end.code, int) else 1)
        finally:
            sys.stdout.flush()
        os._exit(0)

    def _wait(self, pid: int, target: Path) -> int:
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise TimeoutError(f"{target} made no end within {LIMIT_S:.0f} s; see its log.")

    def _end(self, pid: int, target: Path) -> None:
        code = self._wait(pid, target)
        if code:
            raise RuntimeError(
                f"{target} ended with {code}: {target.with_name(f'{target.name}.log').read_text()[-900:]}"
            )


def choose_kills(rng: random.Random, number: int, seconds: float) -> list[Kill]:
    """Return when a run is killed: every second one at a named point, each of them in turn and in both loops."""
    names = list(points.POINTS)
    kills = []
    if number % 2:
        nth = number // 2
        name = names[(nth + nth // len(names)) % len(names)]  # the loops alternate, so that each turn is one further
        if name in points.IN_A_RESUME:
            kills.append(Kill(seconds=rng.uniform(0.5, seconds)))
        kills.append(Kill(point=name, nth=1 if name in points.IN_A_RESUME else rng.randint(1, STEPS - 1)))
    else:
        kills += [Kill(seconds=rng.uniform(0.05, seconds)) for _ in range(rng.choice((1, 1, 2)))]
    return kills


def main() -> int:
    """Make the runs, print and write the table; returns the number of runs with which something was wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    for name in IMPORTS:
        import_module(name)
    import torch

    torch.set_num_threads(1)
    rng = random.Random(options.seed)
    counts: Counter[str] = Counter()
    slowest: dict[str, float] = defaultdict(float)
    bad: Counter[str] = Counter()
    folder = Path(tempfile.mkdtemp(prefix="ale-chaos-"))
    chaos = Chaos(folder)
    chaos.prepare()
    for number in range(options.runs):
        ratio = RATIOS[number // 2 % 2]
        kills = choose_kills(rng, number, chaos.unbroken[ratio].seconds)
        where = f"{'asynchronous' if ratio else 'synchronous'} | {kills[-1]}"
        wrong, start_s = chaos.attempt(number, ratio, kills)
        counts[where] += 1
        bad[where] += bool(wrong)
        slowest[where] = max(slowest[where], start_s)
        for sentence in wrong:
            print(f"run {number} ({where}, {kills}): {sentence}; see {folder}", flush=True)
    lines = ["| loop | killed at | runs | wrong | slowest start to progress |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| {where} | {counts[where]} | {bad[where]} | {slowest[where]:.1f} s |" for where in sorted(counts)]
    lines += [f"| all | | {counts.total()} | {bad.total()} | {max(slowest.values()):.1f} s |"]
    print("\n".join(lines))
    if options.table is not None:
        options.table.write_text("\n".join([HEAD.format(seed=options.seed), *lines, ""]))
    if not bad.total():
        shutil.rmtree(folder)
    return bad.total()


if __name__ == "__main__":
    sys.exit(min(1, main()))
