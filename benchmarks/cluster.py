"""The quickstart over two Ray nodes against one process: held-out success, seconds, and what the controller computes.

    python benchmarks/cluster.py [--seeds 1-3] [--side cluster] [--out runs/cluster] [--example FILE] [-- KEY=VALUE ...]

Two nodes run on this machine, with 2 engines, 2 trainer ranks and 2 rollout workers. Both sides of a seed run one after
the other, the one first that was second for the seed before (`--side`: that one alone); finished runs are not made
again. `controller` is the processor time of the run's event loop in its RL steps as a share of their wall clock, and
`process` that of its whole process, where Ray's threads send and receive; `ms an episode` is that of the event loop.
The table has medians, the ratio with its smallest and largest, and success of each seed. Nothing else should run
beside.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import psutil
from bench_plugins import ALE, steps_done

from ale.store.run_store import RunStore

PLACES = "engine: {replicas: 2}, trainer: {ranks: 2}, rollout: {workers: 2}"
SIDES = ("one process", "cluster")
LOOK_S = 0.5


def make_run(folder: Path, words: list[str]) -> None:
    """Make a run, unless it is there; note the processor time of its process from its first to its last RL step."""
    if (folder / "summary.json").exists() and json.loads((folder / "summary.json").read_text())[
        "status"
    ] == "completed":
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen([str(ALE), "run", *words, "--out", str(folder)], stdout=log, stderr=log)
    spent: dict[int, tuple[float, float, float]] = {}
    try:
        while process.poll() is None:
            if (steps := steps_done(folder)) > 0 and steps not in spent:
                spent[steps] = (time.time(), *seconds_of(psutil.Process(process.pid)))
            time.sleep(LOOK_S)
    except psutil.NoSuchProcess:
        process.wait()
    if process.returncode:
        raise SystemExit(f"The run failed; see {folder.with_suffix('.log')}.")
    (began, *first), (ended, *last) = spent[min(spent)], spent[max(spent)]
    shares = [(after - before) / max(1e-9, ended - began) for before, after in zip(first, last, strict=True)]
    (folder / "controller.json").write_text(json.dumps(dict(zip(("controller", "process"), shares, strict=True))))


def seconds_of(process: psutil.Process) -> tuple[float, float]:
    """Return the processor seconds of a process's first thread, which runs its event loop, and of all its threads."""
    own = next(thread for thread in process.threads() if thread.id == process.pid)
    times = process.cpu_times()
    return own.user_time + own.system_time, times.user + times.system


def read(folder: Path) -> dict[str, float]:
    """Return a run's held-out success at its end, its seconds, those of an RL step, and its controller's share."""
    summary = json.loads((folder / "summary.json").read_text())
    with RunStore.open(folder) as store:
        success = store.metrics("eval")["success"][-1][1]
        spans = [span for _, kind, data in store.events() if kind == "roles" for span in data["trainer"]]
        episodes = store.count("stage = 'rl'")
    rl_s, shares = spans[-1][2] - spans[0][1], json.loads((folder / "controller.json").read_text())
    return {
        "success": success,
        "seconds": summary["seconds"]["total"],
        "step_s": rl_s / steps_done(folder),
        "episodes_a_second": episodes / rl_s,
        "episode_ms": 1000 * shares["controller"] * rl_s / episodes,
        **shares,
    }


def main() -> None:
    """Make the runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1-3")
    parser.add_argument("--side", choices=SIDES, help="default: both")
    parser.add_argument("--out", type=Path, default=Path("runs/cluster"))
    parser.add_argument("--example", default="examples/quickstart.yaml")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    os.environ["RAY_AUTH_MODE"] = "disabled"
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 8, "include_dashboard": False})
    nodes.add_node(num_cpus=8)
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES if options.side in (None, side)}
    try:
        for seed in range(int(first), int(last or first) + 1):
            for side in [*found][:: 1 if seed % 2 else -1]:
                folder = options.out / f"seed-{seed}" / side.replace(" ", "-")
                words = [options.example, f"seed={seed}", *options.overrides]
                if side == "cluster":
                    words.append(f"cluster={{use: ray, address: '{nodes.address}', {PLACES}}}")
                make_run(folder, words)
                found[side].append(read(folder))
                print(f"seed {seed}, {side}: {found[side][-1]}", file=sys.stderr, flush=True)
    finally:
        nodes.shutdown()
    head = "held-out success | seconds | seconds a step | ratio | controller | process | episodes/s | ms an episode"
    print(f"| | {head} |\n|{' --- |' * 9}")
    for side, runs in found.items():
        ratios = [run["step_s"] / other["step_s"] for run, other in zip(runs, next(iter(found.values())), strict=True)]
        cells = [side, ", ".join(f"{run['success']:.3f}" for run in runs), f"{median(r['seconds'] for r in runs):.0f}"]
        cells += [f"{median(run['step_s'] for run in runs):.2f}"]
        compared = side == "cluster" and len(found) > 1
        cells += [f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})" if compared else "1"]
        cells += [f"{median(run[part] for run in runs):.2%}" for part in ("controller", "process")]
        cells += [f"{median(run['episodes_a_second'] for run in runs):.1f}"]
        cells += [f"{median(run['episode_ms'] for run in runs):.2f}"]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
