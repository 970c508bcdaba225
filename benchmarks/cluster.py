"""The quickstart over two Ray nodes against one process: held-out success, seconds, and what the controller computes.

    python benchmarks/cluster.py [--seeds 1-3] [--out runs/cluster] [--example FILE] [-- KEY=VALUE ...]

Two nodes run on this machine, with 2 engines, 2 trainer ranks and 2 rollout workers. Both sides of a seed run one after
the other, the one first that was second for the seed before; finished runs are not made again. `controller` is the
processor time of the run's own process in its RL steps as a share of their wall clock. The table has medians, the ratio
with its smallest and largest, and success of each seed. Nothing else should run beside.
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

from ale.store.run_store import RunStore

PLACES = "engine: {replicas: 2}, trainer: {ranks: 2}, rollout: {workers: 2}"
SIDES = ("one process", "cluster")


def make_run(folder: Path, words: list[str]) -> None:
    """Make a run, unless it is there; note the processor time of its process at its first and last RL step."""
    if (folder / "summary.json").exists() and json.loads((folder / "summary.json").read_text())[
        "status"
    ] == "completed":
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".log").open("wb") as log:
        ale = str(Path(sys.executable).with_name("ale"))
        process = subprocess.Popen([ale, "run", *words, "--out", str(folder)], stdout=log, stderr=log)
    spent: list[tuple[float, float]] = []
    try:
        while process.poll() is None:
            if steps_done(folder):
                times = psutil.Process(process.pid).cpu_times()
                spent.append((time.time(), times.user + times.system))
            time.sleep(1.0)
    except psutil.NoSuchProcess:
        process.wait()
    if process.returncode:
        raise SystemExit(f"The run failed; see {folder.with_suffix('.log')}.")
    (began, first), (ended, last) = spent[0], spent[-1]
    (folder / "controller.json").write_text(json.dumps((last - first) / max(1e-9, ended - began)))


def steps_done(folder: Path) -> int:
    """Return how many RL steps a run has made."""
    if not (folder / "run.db").exists():
        return 0
    with RunStore.open(folder) as store:
        return len(store.metrics("rl").get("success", ()))


def read(folder: Path) -> dict[str, float]:
    """Return a run's held-out success at its end, its seconds, those of an RL step, and its controller's share."""
    summary = json.loads((folder / "summary.json").read_text())
    with RunStore.open(folder) as store:
        success = store.metrics("eval")["success"][-1][1]
        spans = [span for _, kind, data in store.events() if kind == "roles" for span in data["trainer"]]
    steps = steps_done(folder)
    share = json.loads((folder / "controller.json").read_text())
    return {
        "success": success,
        "seconds": summary["seconds"]["total"],
        "step_s": (spans[-1][2] - spans[0][1]) / steps,
        "controller": share,
    }


def main() -> None:
    """Make the runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1-3")
    parser.add_argument("--out", type=Path, default=Path("runs/cluster"))
    parser.add_argument("--example", default="examples/quickstart.yaml")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    os.environ["RAY_AUTH_MODE"] = "disabled"
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 8, "include_dashboard": False})
    nodes.add_node(num_cpus=8)
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    try:
        for seed in range(int(first), int(last or first) + 1):
            for side in SIDES[:: 1 if seed % 2 else -1]:
                folder = options.out / f"seed-{seed}" / side.replace(" ", "-")
                words = [options.example, f"seed={seed}", *options.overrides]
                if side == "cluster":
                    words.append(f"cluster={{use: ray, address: '{nodes.address}', {PLACES}}}")
                make_run(folder, words)
                found[side].append(read(folder))
                print(f"seed {seed}, {side}: {found[side][-1]}", file=sys.stderr, flush=True)
    finally:
        nodes.shutdown()
    print(
        "| | held-out success | seconds | seconds a step | ratio | controller |\n| --- | --- | --- | --- | --- | --- |"
    )
    for side, runs in found.items():
        ratios = [run["step_s"] / other["step_s"] for run, other in zip(runs, found[SIDES[0]], strict=True)]
        cells = [side, ", ".join(f"{run['success']:.3f}" for run in runs), f"{median(r['seconds'] for r in runs):.0f}"]
        cells += [f"{median(run['step_s'] for run in runs):.2f}"]
        cells += [f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})" if side == "cluster" else "1"]
        cells += [f"{median(run['controller'] for run in runs):.1%}" if side == "cluster" else ""]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
