"""What the loop itself costs: episodes a second with nothing to wait for, and its share of the quickstart's time.

python benchmarks/loop_overhead.py [--out runs/overhead] [--repeat 5]

episodes     the scripted engine, sandboxes that do nothing, iFlow with two calls an episode, the reward `tests`, all
             filters; each trajectory is stored. Episodes a second, median with smallest and largest.
controller   the quickstart's loop (12 prompts of 8 rollouts), asynchronous and synchronous: the share of wall clock
             in which the main thread was in the code of the loop (buffer, producer, metrics, ledger, scheduler,
             filters, store), by samples every 2 ms; the rest is episodes, engine, trainer, or idle.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections import Counter
from pathlib import Path
from statistics import median

from bench_plugins import install, run_example

from ale.store.run_store import RunStore

CALLS = [
    '<tool_call>\n{"name": "shell", "arguments": {"command": "true"}}\n</tool_call>',
    '<tool_call>\n{"name": "finish", "arguments": {}}\n</tool_call>',
]
NOTHING = [
    "sandbox={use: nothing}",
    f"engine={json.dumps({'use': 'scripted', 'answers': CALLS})}",
    "trainer=null",
    "sft=null",
    "model.scratch=null",
    "eval=null",
    "rollout.concurrency=256",
    "rl={steps: 10, prompts_per_step: 64}",
]
CONTROLLER = ["sft.steps=100", "sft.demonstrations.count=300", "rl.steps=10", "eval.every=0", "eval.episodes=8"]


def run_anew(folder: Path, arguments: list[str], path: str) -> None:
    """Make a run in a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    run_example(folder, arguments, path)


def episodes_a_second(folder: Path) -> float:
    """Return the speed of a run, from its first episode to the end of its last step."""
    with RunStore.open(folder) as store:
        ((count, first),) = store.rows("SELECT COUNT(*), MIN(finished_at - seconds) FROM trajectories")
        ((last,),) = store.rows("SELECT MAX(time) FROM metrics")
        assert store.count("rejected IS NOT NULL") == 0
    return float(count / (last - first))


def main() -> None:
    """Make the runs and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/overhead"))
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    path = install(options.out / "plugin")
    speeds = []
    for number in range(options.repeat):
        folder = options.out / f"episodes-{number}"
        run_anew(folder, ["--only", "rollout", *NOTHING], path)
        speeds.append(episodes_a_second(folder))
    print(f"| episodes a second | {median(speeds):.0f} ({min(speeds):.0f}-{max(speeds):.0f}) |", flush=True)
    for name, ratio in (("synchronous", 0), ("asynchronous", 2)):
        folder = options.out / name
        run_anew(folder, [*CONTROLLER, f"rl.async_ratio={ratio}", "observers=[sampler]"], path)
        counts = Counter(json.loads((folder / "samples.json").read_text()))
        idle, loop = counts["idle"] / counts.total(), counts["loop"] / counts.total()
        print(f"| {name}: the loop's own code | {loop:.1%} of {counts.total()} samples |")
        print(f"| {name}: idle | {idle:.1%} |")
        most = [(place, n) for place, n in counts.most_common(8) if place not in ("idle", "loop")]
        print(
            f"| {name}: else mostly | {', '.join(f'{p[7:]} {n / counts.total():.1%}' for p, n in most)} |", flush=True
        )


if __name__ == "__main__":
    main()
