"""The quickstart, killed with `kill -9` at an RL step and resumed, against one that was not interrupted.

    python benchmarks/resume.py [--seeds 1-3] [--step 20] [--out runs/resume]

A finished unbroken run is not made again. Success in training is the mean of the last ten steps. The last column counts
groups that the final policy was not trained on, or on more rollouts of than there are; it has to be 0.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from statistics import fmean

from bench_plugins import ALE

from ale.store.run_store import RunStore

RUN = [str(ALE), "run"]


def steps_of(folder: Path) -> int:
    """Return the newest step whose metrics are stored."""
    if not (folder / "run.db").exists():
        return 0
    with RunStore.open(folder) as store:
        return max((step for step, _ in store.metrics("rl").get("success", ())), default=0)


def kill_at(folder: Path, seed: int, step: int) -> None:
    """Begin a run, kill it once a step is stored, and resume it to its end."""
    shutil.rmtree(folder, ignore_errors=True)
    begin = [*RUN, "examples/quickstart.yaml", "--out", str(folder), f"seed={seed}"]
    process = subprocess.Popen(begin, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    while steps_of(folder) < step:
        if process.poll() is not None:
            raise RuntimeError(f"the run in {folder} has ended before step {step}")
        time.sleep(0.3)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    subprocess.run([*RUN, "--resume", str(folder)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def read(folder: Path) -> dict[str, float]:
    """Return held-out success, success in training, steps, and groups that were not trained on exactly once."""
    with RunStore.open(folder) as store:
        success = [value for _, value in store.metrics("rl")["success"]]
        heldout = store.metrics("eval")["success"][-1][1]
        trained = Counter(ordinal for (ordinal,) in store.rows("SELECT ordinal FROM trained"))
    usual = Counter(trained.values()).most_common(1)[0][0]
    wrong = len(set(range(len(trained))) ^ set(trained)) + sum(count > usual for count in trained.values())
    return {"heldout": heldout, "training": fmean(success[-10:]), "steps": len(success), "wrong": wrong}


def main() -> None:
    """Make the runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1-3")
    parser.add_argument("--step", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("runs/resume"))
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    print("| seed | run | steps | held-out success | success in training | not trained on exactly once |")
    print("| --- | --- | --- | --- | --- | --- |")
    for seed in range(int(first), int(last or first) + 1):
        unbroken, killed = (options.out / f"seed-{seed}" / name for name in ("unbroken", "killed"))
        summary = unbroken / "summary.json"
        if not summary.exists() or json.loads(summary.read_text())["status"] != "completed":
            shutil.rmtree(unbroken, ignore_errors=True)
            begin = [*RUN, "examples/quickstart.yaml", "--out", str(unbroken), f"seed={seed}"]
            subprocess.run(begin, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        kill_at(killed, seed, options.step)
        for name, folder in (("unbroken", unbroken), (f"killed at step {options.step}, resumed", killed)):
            found = read(folder)
            cells = (seed, name, found["steps"], f"{found['heldout']:.3f}", f"{found['training']:.3f}", found["wrong"])
            print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
