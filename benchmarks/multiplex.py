"""An engine on the trainer's device against a static partition of the same devices: seconds an RL step.

    python benchmarks/multiplex.py [--seeds 1-3] [--loads tails even training] [--engine torch] [--out runs/multiplex]
    python benchmarks/multiplex.py --engine vllm --slots 8 --loads tails --steps 6
    python benchmarks/multiplex.py --gpu [--model FOLDER] [--engine vllm]

    static       an engine on the first core, and the trainer on the second, which is idle while rollouts are missing
    multiplexed  the same, and a second engine on the trainer's core (`rl.multiplex: 1`)

    tails        log-normal lengths, coefficient of variation 1.5: rollouts take longer than training
    even         lengths that are all alike, and training that takes about as long as rollouts
    training     the same lengths, and training that takes half as long again: there a second engine cannot help

A policy with random weights writes as many tokens as each task says, so both sides sample the same lengths. A run at
the beginning (`calibration`) finds with how many passes (`rl.epochs`) training takes that long. Engines and trainer are
bound to their cores once they are up. Both sides of a seed run one after the other, the one first that was second for
the seed before; finished runs are not made again. Steps are counted without the first two and the last one, in which
the loop fills and empties; `ratio` is static / multiplexed, its median over seeds with the smallest and the largest.
The last columns are shares of a core: what engines and trainer on each core use, the run's own process, and Ray's
processes, which are bound to none. Nothing else should run beside.

With `--gpu` both are on one GPU: the engine stays in its memory (static), or sleeps while the trainer trains.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

import psutil
from bench_plugins import ALE, steps_done

from ale.messages import Message, ModelCall
from ale.specs.driver import Driver, DriverContext
from ale.specs.sandbox import Sandbox
from ale.specs.scaffold import ModelSession, Scaffold
from ale.store.run_store import RunStore
from ale.task import Task
from ale_lab.simulation.workload import LogNormal

SIDES = ("static", "multiplexed")
PROMPTS, GROUP, MOST, CONTEXT = 8, 4, 1700, 2048
"""Tasks of a step, rollouts of each, tokens of the longest one, and of a context."""
SHAPE = {"hidden_size": 64, "layers": 2, "heads": 2, "kv_heads": 2, "vocab_size": 720, "max_length": CONTEXT}
WORDS = ("the", "parser", "fails", "where", "a", "number", "is", "missing")
LOOK_S = 0.25
WORK = ("logprobs", "update", "publish", "save")
"""The trainer's states in which it works."""
USERS = ("core 1", "core 2", "run", "Ray")
"""Who uses processors: what is bound to each core, and what is not bound."""
TITLES = ("trains, s", "switches a step", "a switch, s", "prompt tokens", "staleness", *USERS)
FORMS = (".2f", ".1f", ".2f", ".0f", ".2f", ".0%", ".0%", ".0%", ".0%")
"""What the table has beside the ratios, as means over seeds, and how it is written."""
LOADS = {"tails": LogNormal(320, 1.5, MOST), "even": LogNormal(320), "training": LogNormal(320)}
"""Tokens of an episode."""


class Writer(Driver, Scaffold):
    """Has the model write as many tokens as the task says: the rollouts of a group take its lengths in turn."""

    api_version = ">=1.0,<1.2"

    def __init__(self, config: Any, context: DriverContext) -> None:
        super().__init__(config, context)
        self._begun: Counter[str] = Counter()

    @classmethod
    def uses_sandbox(cls, config: Any) -> bool:
        return False

    async def run(self, task: Task, sandbox: Sandbox, session: ModelSession) -> str:
        """A reply that ends too early is followed by another one."""
        lengths = task.metadata["lengths"]
        left, history = int(lengths[self._begun[task.id] % len(lengths)]), [Message("user", task.instruction)]
        self._begun[task.id] += 1
        while left > 0:
            (reply,) = await session.answer(ModelCall(tuple(history), tool_choice="none", max_tokens=left))
            left -= reply.completion_tokens
            history += [reply.message, Message("user", "Go on.")]
        return "finish"


def score(completion: str) -> float:
    """Judge a reply by what differs within a group: rewards that are all alike would lead to no update."""
    return (sum(map(ord, completion)) % 97) / 97


def write_inputs(out: Path) -> None:
    """Write the scaffold as a plugin, and a model with random weights."""
    from ale_train.config.scratch_model import ScratchModel
    from ale_train.models.scratch import write_scratch_model

    info = out / "plugin" / "ale_bench_multiplex-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ale-bench-multiplex\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[ale.scaffold]\nwriter = multiplex:Writer\n")
    if not (out / "model").exists():
        letters = random.Random(0).choices("aeinrst ", k=30_000)  # they make all tokens: the one that ends is rare
        write_scratch_model(ScratchModel.model_validate(SHAPE), out / "model", ["".join(letters)], seed=0)


def write_run_file(file: Path, options: argparse.Namespace, load: str, seed: int, side: str, epochs: int) -> None:
    """Write a run file, and its tasks beside it: those of a load and a seed are the same on both sides."""
    length, source, rows = LOADS[load], random.Random(seed), []
    for number in range(PROMPTS * options.steps):
        prompt = " ".join([str(number), *source.choices(WORDS, k=24)])
        rows.append(json.dumps({"prompt": prompt, "lengths": [round(length.draw(source)) for _ in range(GROUP)]}))
    tasks = file.with_suffix(".jsonl")
    tasks.write_text("\n".join(rows))
    lent, cluster = int(side == "multiplexed"), "null"
    if not options.gpu:
        cluster = f"{{use: ray, engine: {{replicas: {1 + lent}}}, trainer: {{ranks: 1}}}}"
    elif lent and options.engine == "torch":  # servers can sleep without a cluster, too
        cluster = "{use: ray, engine: {devices: 1}, trainer: {ranks: 1, devices: 1}}"
    device = "cuda" if options.gpu else "cpu"
    more = "gpu_memory: 0.4" if options.gpu and options.engine != "torch" else "threads: 1"
    file.write_text(f"""
seed: {seed}
model: {{path: {options.model or options.out / "model"}}}
tasks: {{use: jsonl, files: {{train: {tasks}}}, shuffle: false}}
scaffold: writer
sandbox: none
reward: {{use: python, path: {Path(__file__).resolve()}, function: score}}
engine: {{use: {options.engine}, device: {device}, max_batch: {options.slots}, max_context: {CONTEXT}, {more}}}
trainer: {{use: torch, device: {device}, threads: 1}}
algorithm: {{use: pg, variant: grpo, group_size: {GROUP}}}
rollout: {{concurrency: {2 * PROMPTS * GROUP}, max_calls: 1000, max_tokens: {MOST}, max_context: {CONTEXT}}}
rl: {{steps: {options.steps}, prompts_per_step: {PROMPTS}, epochs: {epochs}, lr: 1.0e-6, checkpoint_every: 0,
  async_ratio: {options.ratio}, multiplex: {lent}}}
eval: null
cluster: {cluster}
""")


@dataclass
class Spent:
    """Processor seconds of each of `USERS`, with what processes that have ended had used when they were last seen."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(USERS, 0.0))
    seen: dict[psutil.Process, float] = field(default_factory=dict)

    def look(self, user: str, processes: Iterable[psutil.Process]) -> None:
        """Add what these processes of a user have used since they were seen last."""
        for one in processes:
            with suppress(psutil.NoSuchProcess):
                now = sum(one.cpu_times()[:2])  # user, system
                self.seconds[user] += now - self.seen.get(one, 0.0)
                self.seen[one] = now


@dataclass
class Watch:
    """Binds the parts of a run to their cores, and notes what they use."""

    process: psutil.Popen
    folder: Path
    gpu: bool
    steps: int = -1
    lent: list[psutil.Process] = field(default_factory=list)
    """The processes of the lent engine."""
    memory: dict[str, float] = field(default_factory=dict)
    """MiB of the lent engine: most before it first slept, least asleep, most awake after that. On a GPU the most and
    the least that is in use of its memory."""
    spent: Spent = field(default_factory=Spent)
    looks: list[tuple[float, ...]] = field(default_factory=list)
    """After each step from the second one on: the time, and the processor seconds of each of `USERS`."""

    def look(self) -> None:
        """Look once."""
        with suppress(psutil.NoSuchProcess):  # what ends meanwhile is looked at no more
            file = self.folder / "cluster" / "roles.json"
            roles = json.loads(file.read_text())["roles"] if file.exists() else []
            engines = [row for row in roles if row["role"] == "engine"]
            steps = steps_done(self.folder)
            if steps != self.steps or steps < 2:  # else seldom: it reads about all processes of the machine
                self.steps = steps
                self._look_at_processes([row["pid"] for row in engines])
            self._note_memory(engines)

    def _look_at_processes(self, engines: list[int]) -> None:
        children = self.process.children(recursive=True)
        first = find_families(children, lambda one: one.pid in engines[:1])
        self.lent = find_families(children, lambda one: one.pid in engines[1:])
        second = self.lent + find_families(children, lambda one: "".join(one.cmdline()).startswith("ray::RankActor"))
        if not self.gpu:
            for core, part in zip(sorted(os.sched_getaffinity(0)), (first, second), strict=False):
                bind(part, core)
        if self.steps >= 2:
            for user, part in zip(USERS, (first, second, [self.process], {*children} - {*first, *second}), strict=True):
                self.spent.look(user, part)
            self.looks.append((time.monotonic(), *self.spent.seconds.values()))

    def _note_memory(self, engines: list[dict[str, Any]]) -> None:
        if self.gpu and self.steps >= 1:
            import torch

            free, total = torch.cuda.mem_get_info()
            self._note((total - free) / 2**20, "most", max)
            self._note((total - free) / 2**20, "least", min)
        elif self.lent and self.steps >= 0:
            mebibytes = sum(one.memory_info().rss for one in self.lent) / 2**20
            match engines[-1]["state"]:
                case "asleep":
                    self._note(mebibytes, "asleep", min)
                case "serving":
                    self._note(mebibytes, "awake again" if "asleep" in self.memory else "before", max)

    def _note(self, mebibytes: float, name: str, choose: Callable[[float, float], float]) -> None:
        self.memory[name] = choose(mebibytes, self.memory.get(name, mebibytes))

    def use(self) -> dict[str, Any]:
        """Return what was noted: shares of a core, and memory."""
        (began, *first), (ended, *last) = self.looks[0], self.looks[-1]
        shares = ((after - before) / max(1e-9, ended - began) for before, after in zip(first, last, strict=True))
        return {**dict(zip(USERS, shares, strict=True)), "memory": self.memory}


def find_families(processes: Iterable[psutil.Process], wanted: Callable[[psutil.Process], bool]) -> list[Any]:
    """Return the processes that are wanted, with all that they have started."""
    return [each for one in processes if wanted(one) for each in (one, *one.children(recursive=True))]


def bind(processes: Iterable[psutil.Process], core: int) -> None:
    """Bind processes to a core: each thread of theirs, as it has an affinity of its own, which its children inherit."""
    for one in processes:
        for thread in one.threads():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread.id, {core})


def measure(options: argparse.Namespace, load: str, seed: int, side: str, epochs: int) -> dict[str, Any]:
    """Make a run, unless it is there, and return its figures; one that did not end begins anew."""
    name = f"{load}-{seed}-{side}" if seed else "calibration"
    folder: Path = options.out / f"{options.engine}{'-gpu' * options.gpu}" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    file = folder.with_suffix(".yaml")
    before = file.read_text() if file.exists() else ""
    write_run_file(file, options, load, seed, side, epochs)
    if (folder / "use.json").exists() and file.read_text() == before:
        return read(folder)
    shutil.rmtree(folder, ignore_errors=True)
    environment = {**os.environ, "PYTHONPATH": f"{options.out / 'plugin'}:{Path(__file__).parent}"}
    with folder.with_suffix(".log").open("wb") as log:
        command = [str(ALE), "run", str(file), "--out", str(folder)]
        process = psutil.Popen(command, stdout=log, stderr=log, env=environment)
    watch = Watch(process, folder, options.gpu)
    while process.poll() is None:
        watch.look()
        time.sleep(LOOK_S)
    if process.returncode:
        raise SystemExit(f"The run failed; see {folder.with_suffix('.log')}.")
    (folder / "use.json").write_text(json.dumps(watch.use()))
    return read(folder)


def choose_epochs(options: argparse.Namespace) -> dict[str, int]:
    """Return the passes over the rollouts of a step for each load, from how long rollouts and a pass take."""
    if options.loads == ["tails"]:
        return {"tails": 1}
    found = measure(options, "even", 0, "static", 1)
    rest_s = found["trains, s"] - found["update"]
    even = max(1.0, (found["mean"] - rest_s) / found["update"])
    return {"tails": 1, "even": round(even), "training": round(1.5 * even)}


def read(folder: Path) -> dict[str, Any]:
    """Return the figures of a run over its steps but for the first two and the last one."""
    with RunStore.open(folder) as store:
        ends = [when for when, kind, _ in store.events() if kind == "roles"]
        metrics = {name: [value for _, value in points] for name, points in store.metrics("rl").items()}
    steps = range(2, len(ends) - 1)
    seconds = [ends[i] - ends[i - 1] for i in steps]
    lent = metrics.get("lent", [0.0] * len(ends))
    whole, cached = metrics["engine/prompt_tokens"], metrics["engine/cached_prompt_tokens"]
    switches = 1 + 2 * sum(lent[:-1])  # the first time they are taken back, and then each time they were lent
    return {
        "mean": fmean(seconds),
        "median": median(seconds),
        "update": fmean(metrics["trainer/update_s"][i] for i in steps),
        "trains, s": fmean(sum(metrics[f"trainer/{state}_s"][i] for state in WORK) for i in steps),
        "switches a step": fmean(lent[i - 1] + lent[i] for i in steps),
        "a switch, s": sum(metrics.get("switch_s", [])) / switches,
        "prompt tokens": (whole[-2] - cached[-2] - whole[1] + cached[1]) / len(steps),
        "staleness": fmean(metrics["staleness"][i] for i in steps),
        **json.loads((folder / "use.json").read_text()),
    }


def print_table(found: dict[tuple[str, str], list[dict[str, Any]]]) -> None:
    """Print what was measured for each load and side."""
    columns = ["load", "", "mean step, s", "ratio", "median step, s", "ratio", *TITLES, "MiB"]
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    for (load, side), runs in found.items():
        cells = [load, side]
        for key in ("mean", "median"):
            ratios = [one[key] / other[key] for one, other in zip(found[load, "static"], runs, strict=True)]
            ratio = f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
            cells += [f"{median(run[key] for run in runs):.2f}", "1" if side == "static" else ratio]
        cells += [f"{fmean(run[key] for run in runs):{form}}" for key, form in zip(TITLES, FORMS, strict=True)]
        cells += [", ".join(f"{name} {mebibytes:.0f}" for name, mebibytes in runs[-1]["memory"].items())]
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    """Make the runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1-3")
    parser.add_argument("--loads", nargs="+", choices=list(LOADS), default=list(LOADS))
    parser.add_argument("--engine", choices=("torch", "vllm", "sglang"), default="torch")
    parser.add_argument("--slots", type=int, default=2, help="requests that an engine samples at once")
    parser.add_argument("--steps", type=int, default=11, help="at least 4")
    parser.add_argument("--ratio", type=int, default=2, help="rl.async_ratio")
    parser.add_argument("--model", type=Path, help="folder of a model; by default a small one with random weights")
    parser.add_argument("--gpu", action="store_true", help="engine and trainer on one GPU")
    parser.add_argument("--out", type=Path, default=Path("runs/multiplex"))
    options = parser.parse_args()
    options.out = options.out.resolve()
    if options.gpu:
        import torch

        if not torch.cuda.is_available():
            raise SystemExit("--gpu: torch finds no GPU here; leave it out, and engines and trainer are on two cores.")
    elif len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("Two cores are needed, one for an engine and one for the trainer; this process may use one.")
    first, _, last = options.seeds.partition("-")
    write_inputs(options.out)
    epochs = choose_epochs(options)
    found: dict[tuple[str, str], list[dict[str, Any]]] = {(load, side): [] for load in options.loads for side in SIDES}
    for seed in range(int(first), int(last or first) + 1):
        for load in options.loads:
            for side in SIDES[:: 1 if seed % 2 else -1]:
                found[load, side].append(measure(options, load, seed, side, epochs[load]))
                print(f"seed {seed}, {load}, {side}: {found[load, side][-1]}", file=sys.stderr, flush=True)
    print_table(found)


if __name__ == "__main__":
    main()
