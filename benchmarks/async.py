"""Asynchronous against synchronous training: steps an hour, and held-out success at the end.

    python benchmarks/async.py [--seeds 1-5] [--parts cv-1 cv-2 quickstart] [--out runs/async] [--steps 30]

    cv-1, cv-2   the quickstart with tools that wait: log-normal, mean 1 s, coefficient of variation 1 and 2; `--steps`
                 steps. Two batches of rollouts may run at once, which only asynchronous training uses.
    quickstart   the quickstart as it is, with all of its steps

Both sides of a seed start from the same warm start and run one after the other, the one first that was second for the
seed before. Steps an hour are those of the loop alone, from its beginning to the end of its last step; finished runs
are not made again. The table has medians over seeds, the ratio with its smallest and largest, and success with 95 %
bootstrap intervals over seeds; `paired` is asynchronous less synchronous. Nothing else should run beside.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean, median

import numpy as np
from bench_plugins import install, run_example

from ale.store.run_store import RunStore

WARM = ("rl=null", "eval.every=0", "eval.episodes=16")
LOOP = ("sft=null", "model.scratch=null", "eval.every=0")
SIDES = {"synchronous": ("rl.async_ratio=0",), "asynchronous": ("rl.async_ratio=2", "rl.ahead=1")}
WAITING = ("scaffold.use=waiting", "scaffold.mean_s=1", "rollout.concurrency=192")
PARTS = {
    "cv-1": (*WAITING, "scaffold.cv=1"),
    "cv-2": (*WAITING, "scaffold.cv=2"),
    "quickstart": (),
}


def run_once(folder: Path, overrides: list[str], path: str) -> None:
    """Make a run, unless it is there."""
    if not folder.exists() or json.loads((folder / "summary.json").read_text())["status"] != "completed":
        run_example(folder, overrides, path)


def read(folder: Path) -> dict[str, float]:
    """Return a run's steps an hour, its held-out success at the end, and means over its steps."""
    with RunStore.open(folder) as store:
        spans = [span for _, kind, data in store.events() if kind == "roles" for span in data["trainer"]]
        metrics = {name: [value for _, value in points] for name, points in store.metrics("rl").items()}
        success = store.metrics("eval")["success"][-1][1]
    hours = (spans[-1][2] - spans[0][1]) / 3600
    means = {name: fmean(metrics[name]) for name in ("bubble/trainer", "bubble/engine", "staleness")}
    return {"speed": len(metrics["success"]) / hours, "success": success, **means}


def interval(values: list[float]) -> str:
    """Return a mean with its 95 % bootstrap interval."""
    draws = np.random.default_rng(0).choice(values, (10_000, len(values))).mean(axis=1)
    low, high = np.percentile(draws, (2.5, 97.5))
    return f"{fmean(values):.3f} [{low:.3f}, {high:.3f}]"


def main() -> None:
    """Make the runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1-5")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--out", type=Path, default=Path("runs/async"))
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    path = install(options.out / "plugin")
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for seed in seeds:
        warm = options.out / f"seed-{seed}" / "warm"
        run_once(warm, [f"seed={seed}", *WARM], path)
        for name in options.parts:
            overrides = [*PARTS[name], *([] if name == "quickstart" else [f"rl.steps={options.steps}"])]
            for side, own in list(SIDES.items())[:: 1 if seed % 2 else -1]:
                folder = options.out / f"seed-{seed}" / f"{name}-{side}"
                policy = f"model.path={warm / 'model' / 'sft'}"
                run_once(folder, [f"seed={seed}", *LOOP, policy, *overrides, *own], path)
                found.setdefault(name, {}).setdefault(side, []).append(read(folder))
                print(f"seed {seed}, {name}, {side}: {found[name][side][-1]}", file=sys.stderr, flush=True)
    print(
        "| | loop | steps an hour | ratio | held-out success | paired | trainer waits | engine starved | staleness |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    )
    for name, sides in found.items():
        for side, runs in sides.items():
            pairs = list(zip(runs, sides["synchronous"], strict=True))
            ratios = [run["speed"] / other["speed"] for run, other in pairs]
            ratio = f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
            paired = interval([run["success"] - other["success"] for run, other in pairs])
            means = [fmean(run[key] for run in runs) for key in ("bubble/trainer", "bubble/engine", "staleness")]
            cells = [name, side, f"{median(run['speed'] for run in runs):.0f}", ratio if side != "synchronous" else "1"]
            cells += [interval([run["success"] for run in runs]), paired if side != "synchronous" else "0"]
            cells += [f"{means[0]:.0%}", f"{means[1]:.0%}", f"{means[2]:.2f}"]
            print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
