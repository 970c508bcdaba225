"""What must hold of a run that was killed and resumed until it was complete."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

PROGRESS_S = 10.0
TIMES = ("_s", "seconds", "pool/", "engine/", "bubble/", "tokens/sampled", "tokens/lost")
"""Parts of the names of metrics that are of time, or of the process that made them, or of what a kill undid."""
KEPT = ("torchinductor_*", "ale-local-*")
"""Folders for temporary files that outlive an unbroken run, too; they are empty."""
Metrics = dict[tuple[str, int, str], float]


@dataclass(frozen=True)
class Unbroken:
    """A run that nothing has interrupted."""

    seconds: float
    metrics: Metrics
    lengths: list[int]


@dataclass
class Found:
    """What is wrong with a run, in sentences, and the longest time from a start to progress."""

    wrong: list[str]
    slowest_start_s: float


def read_unbroken(folder: Path, seconds: float) -> Unbroken:
    """Read an unbroken run."""
    with sqlite3.connect(folder / "run.db") as db:
        return Unbroken(seconds, _metrics(db), _trained_lengths(db))


def check_run(folder: Path, temporary: Path, unbroken: Unbroken, ratio: int, steps: int, prompts: int) -> Found:
    """Check a complete run of so many steps and prompts a step, with a bound on staleness."""
    with closing(sqlite3.connect(folder / "run.db")) as db:
        wrong = find_training_faults(db, ratio, steps, prompts)
        if ratio == 0:
            wrong += _find_differences(db, unbroken)
        slowest = _slowest_start(db)
    left = [path for path in temporary.rglob("*") if not any(path.match(kept) for kept in KEPT)]
    wrong += find_leftovers(folder) + broken(
        (slowest < PROGRESS_S, f"a start took {slowest:.1f} s to make progress"),
        (not left, f"left behind: {[str(path) for path in left]}"),
        (not _processes_of(temporary), f"processes are left: {_processes_of(temporary)}"),
    )
    return Found(wrong, slowest)


def find_training_faults(db: sqlite3.Connection, ratio: int, steps: int, prompts: int) -> list[str]:
    """Return what is wrong with what was trained on in a complete run, in sentences."""
    trained = db.execute(
        "SELECT ordinal, version, MIN(policy_version) FROM trained JOIN trajectories ON id = trajectory "
        "GROUP BY ordinal, version"
    ).fetchall()
    ordinals = sorted(ordinal for ordinal, _, _ in trained)
    sizes = Counter(version for _, version, _ in trained)
    oldest = max((version - 1 - oldest for _, version, oldest in trained), default=0)
    rejected = "SELECT COUNT(*) FROM trained JOIN trajectories ON id = trajectory WHERE rejected IS NOT NULL"
    done = sorted(step for stage, step, name in _metrics(db) if (stage, name) == ("rl", "success"))
    tokens = db.execute("SELECT step, name, value FROM metrics WHERE name LIKE 'tokens/%'").fetchall()
    return broken(
        (db.execute("PRAGMA integrity_check").fetchall() == [("ok",)], "the database is damaged"),
        (ordinals == list(range(steps * prompts)), f"ordinals were trained on with gaps or twice: {ordinals}"),
        (set(sizes.values()) == {prompts}, f"batches have other sizes than {prompts}: {sizes}"),
        (oldest <= ratio, f"the bound on staleness was broken: {oldest}"),
        (db.execute(rejected).fetchone() == (0,), "a rejected rollout was trained on"),
        (done == list(range(1, steps + 1)), f"metrics are there of the steps {done}"),
        (all(value >= 0 for _, _, value in tokens), f"the token ledger does not close: {tokens}"),
        ((steps, "tokens/trained", sum(_trained_lengths(db))) in tokens, f"not what was trained on: {tokens}"),
    )


def find_leftovers(folder: Path) -> list[str]:
    """Return what a run has left in its folder, in sentences."""
    left = [*(folder / "checkpoints").glob(".*"), *folder.glob("*.tmp")]
    return broken(
        (not left, f"left behind: {[str(path) for path in left]}"), (not _is_locked(folder), "the folder is locked")
    )


def broken(*demands: tuple[object, str]) -> list[str]:
    """Return the sentences of the demands that do not hold."""
    return [sentence for holds, sentence in demands if not holds]


def _find_differences(db: sqlite3.Connection, unbroken: Unbroken) -> list[str]:
    """Return in what a synchronous run differs from one that nothing has interrupted."""
    metrics = _metrics(db)
    every = metrics.keys() | unbroken.metrics.keys()
    differing = sorted(key for key in every if metrics.get(key) != unbroken.metrics.get(key))
    return broken(
        (not differing, f"metrics differ from those of an unbroken run: {differing[:4]}"),
        (_trained_lengths(db) == unbroken.lengths, "other rollouts were trained on than in an unbroken run"),
    )


def _is_locked(folder: Path) -> bool:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _metrics(db: sqlite3.Connection) -> Metrics:
    rows = db.execute("SELECT stage, step, name, value FROM metrics")
    return {(stage, step, name): value for stage, step, name, value in rows if not any(part in name for part in TIMES)}


def _trained_lengths(db: sqlite3.Connection) -> list[int]:
    sql = "SELECT sampled_tokens FROM trained JOIN trajectories ON id = trajectory"
    rows = db.execute(f"{sql} ORDER BY ordinal, grp, step, sampled_tokens")
    return [tokens for (tokens,) in rows]


def _slowest_start(db: sqlite3.Connection) -> float:
    """Return the longest time from a start to the next stored rollout or step that follows it."""
    starts = [when for (when,) in db.execute("SELECT time FROM events WHERE kind IN ('run_started', 'run_resumed')")]
    done = "SELECT finished_at FROM trajectories UNION SELECT MIN(time) FROM metrics GROUP BY stage, step"
    progress = sorted(when for (when,) in db.execute(done))
    waits = []
    for start, after in zip(starts, [*starts[1:], float("inf")], strict=True):
        came = next((when for when in progress if start <= when < after), None)
        if came is not None:
            waits.append(came - start)
    return max(waits, default=0.0)


def _processes_of(temporary: Path) -> list[str]:
    """Return the processes whose environment names the run's folder for temporary files."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
        except OSError:
            continue
        if os.fsencode(str(temporary)) in environment:
            found.append((process / "comm").read_text().strip())
    return found
