"""A run of 100,000 trajectories of 20 chunks: how long it takes to list them and to open the report.

    python benchmarks/large_run.py [--trajectories 100000] [--out runs/large] [--repeat 5]

    list     the store is opened, and id, task, step, reward and reason of rejection of every trajectory are read
    open     `write_report`: what `ale report RUN` does once Python has imported it
    step     the token ledger's query, once a step

Each trajectory has 20 chunks of 24 tokens with a tool's answer each. They are written once, which is not measured here.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from ale.messages import Message
from ale.store.encoding import encode
from ale.store.run_store import RunStore
from ale.trajectory import Chunk, Observation, Score, Sequence, Trajectory
from ale_report.page import write_report
from ale_train.rl.token_accounting import TokenAccounting

CHUNKS, TOKENS, GROUP, GROUPS = 20, 24, 8, 16


def trajectory() -> Trajectory:
    """Return a rollout of 20 chunks."""
    messages = [Message("user", "Mend the parser so that its tests pass.")]
    chunks, observations = [], []
    for i in range(CHUNKS):
        messages += [Message("assistant", "I look at the next file."), Message("tool", "def parse(text):\n    ..." * 4)]
        start = 40 + i * 60
        chunks.append(Chunk(i, 0, start, start + TOKENS, (-0.25,) * TOKENS, (3,) * TOKENS, "stop", turn=1 + 2 * i))
        observations.append(Observation(i, "shell", {"command": f"sed -n {i},40p parser.py"}, "def parse", 0, 0.1))
    tokens = Sequence(tuple(range(40 + CHUNKS * 60)), tuple(messages))
    return Trajectory(
        "t", "task", "train", "rl", 1, "g", 1, 3, (tokens,), tuple(chunks), tuple(observations), Score(1.0, True),
        seconds=30.0, timings=(("start", 0.1), ("act", 29.0), ("score", 0.9)),
    )  # fmt: skip


def write(folder: Path, count: int) -> None:
    """Write a run of so many trajectories, steps of 16 groups of 8."""
    text, arrays = encode(trajectory())
    began = time.time() - count

    def rows() -> object:
        for n in range(count):
            step, group = n // (GROUP * GROUPS) + 1, f"g{n // GROUP}"
            data = text.replace('"id":"t"', f'"id":"t{n}"').replace('"step":1,', f'"step":{step},')
            data = data.replace('"group":"g"', f'"group":"{group}"')
            data = data.replace('"started_at":0.0', f'"started_at":{began + n - 30.0}')
            values = (f"t{n}", "rl", step, "train", f"task {n % 500}", group, step, n % 2, n % 2)
            rejected = "invalid" if n % 97 == 0 else None
            yield (*values, rejected, None, CHUNKS, CHUNKS * TOKENS, 30.0, began + n, data, arrays)

    with RunStore.create(folder) as store:
        store.change(("INSERT INTO trajectories VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)", rows()))
        store.set_meta({"run_id": "large"})
        for step in range(1, count // (GROUP * GROUPS) + 1):
            store.add_metrics("rl", step, {"success": 0.5, "reward": 0.5, "loss": 0.1, "entropy": 1.0})
            ended = began + step * GROUP * GROUPS
            spans = [["wait_data", ended - 128, ended - 28], ["update", ended - 28, ended]]
            sampled = [["busy", ended - 128, ended - 1], ["loading", ended - 1, ended]]
            said = "Both are busy."
            store.add_event("roles", step=step, version=step, advice=said, trainer=spans, engine=sampled)


def timed(repeat: int, call: Callable[[], object]) -> str:
    """Return the seconds of a call: median, smallest, largest."""
    seconds = []
    for _ in range(repeat):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return f"{median(seconds):.3f} ({min(seconds):.3f}-{max(seconds):.3f})"


def listed(folder: Path) -> int:
    """Read what a list of all trajectories shows."""
    with RunStore.open(folder) as store:
        return len(store.rows("SELECT id, task_id, step, reward, rejected FROM trajectories ORDER BY rowid"))


def main() -> None:
    """Write the run unless it is there, measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=Path("runs/large"))
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    if not options.out.exists():
        write(options.out, options.trajectories)
    assert listed(options.out) == options.trajectories
    size = (options.out / "run.db").stat().st_size / 2**20
    print(f"{options.trajectories} trajectories of {CHUNKS} chunks, {size:.0f} MiB; seconds")
    print(f"| list | {timed(options.repeat, lambda: listed(options.out))} |", flush=True)
    print(f"| open the report | {timed(options.repeat, lambda: write_report(options.out))} |", flush=True)
    with RunStore.open(options.out) as store:
        ledger = TokenAccounting(store)
        print(f"| token ledger, a step | {timed(options.repeat, lambda: ledger.close([], [(1, 'g0')], 0))} |")


if __name__ == "__main__":
    main()
