"""The state of a run, read by SQL from its database: also while it goes on, and after it was killed.

A summary that is older than the last start is that of an earlier attempt and is not used. Who writes to a run holds its
folder's lock, so a run without a summary goes on exactly if the lock is taken. Queries read the tables' indexes; of
trajectories, only single examples are loaded.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ale.errors import ConfigError
from ale.store.run_store import DB_NAME, SUMMARY_NAME, LostEpisodes, RunStore
from ale.trajectory import Trajectory
from ale_train.config.rl import RLConfig
from ale_train.config.supervised import SFTConfig

RUNNING, KILLED, COMPLETED = "running", "killed", "completed"
EVAL = "eval"
MAX_REASONS, MAX_RUNS = 12, 5
BEFORE_SFT_STEP = -1
_DEFAULT_STEPS = {"rl": RLConfig.model_fields["steps"].default, "sft": SFTConfig.model_fields["steps"].default}


@dataclass(frozen=True, slots=True)
class StageFacts:
    """A stage that has begun. `planned` is how many steps the run file asks for, if that can be said; `metrics` are
    those of the newest step."""

    name: str
    episodes: int
    passed: int
    lost: int
    """Episodes that failed or were rejected."""
    steps: int
    planned: int | None
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What `ale show RUN` shows above the table of episodes."""

    run_id: str
    status: str
    resumable: bool
    """Whether `ale run --resume` goes on with it as it is: training on a dump cannot, and a finished run only with more
    steps."""
    error: str | None
    seconds: float | None
    idle_s: float | None
    """Seconds since something was last stored."""
    episodes: int
    sampled_tokens: int
    stages: tuple[StageFacts, ...]
    saved: tuple[str, ...]
    """Stages whose policy is saved, as they are done."""
    heldout: Mapping[str, Mapping[str, Any]]
    """The figures of each evaluation by its label, as in summary.json."""
    lost: tuple[LostEpisodes, ...]


def open_run(folder: Path) -> RunStore:
    """Open a run for reading. Raises `ConfigError` with a sentence if the folder holds none."""
    if not folder.is_dir():
        what = "a file, not a run folder" if folder.exists() else "no folder"
        raise ConfigError(f"{folder} is {what}; give the folder that `ale run` has written, such as runs/NAME.")
    if not (folder / DB_NAME).is_file() and (runs := sorted(folder.glob(f"*/{DB_NAME}"), key=_changed)):
        names = ", ".join(str(path.parent) for path in reversed(runs[-MAX_RUNS:]))
        raise ConfigError(f"{folder} is not a run folder, but holds some. The newest: {names}.")
    return RunStore.open(folder)


def _changed(path: Path) -> float:
    return path.stat().st_mtime


def read_run_facts(store: RunStore) -> RunFacts:
    """Read the state of a run."""
    started_at, start = _last_start(store)
    summary = _read_summary(store.folder, started_at)
    last = _last_change(store)
    status = str(summary.get("status") or (RUNNING if is_written_to(store.folder) else KILLED))
    seconds = (summary.get("seconds") or {}).get("total")
    if seconds is None and started_at is not None:
        until = time.time() if status == RUNNING else max(started_at, last or 0)
        seconds = until - started_at + float(store.meta("seconds") or 0)
    episodes = store.count()
    return RunFacts(
        run_id=str(store.meta("run_id") or start.get("run_id") or store.folder.resolve().name),
        status=status,
        resumable=status not in (RUNNING, COMPLETED) and start.get("only") != "train",
        error=summary.get("error"),
        seconds=seconds,
        idle_s=None if last is None else max(0.0, time.time() - last),
        episodes=episodes,
        sampled_tokens=store.sampled_tokens(),
        stages=_read_stages(store),
        saved=tuple(key.partition(".")[2] for (key,) in store.rows("SELECT key FROM meta WHERE key LIKE 'saved.%'")),
        heldout=_read_evaluations(store, summary.get("heldout") or {}),
        lost=tuple(store.lost(MAX_REASONS)),
    )


def is_written_to(folder: Path) -> bool:
    """Whether a process holds the folder's lock. A shared lock is tried and given back at once."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def read_settings(store: RunStore) -> Mapping[str, Any]:
    """Return the run file as it was loaded; empty if the run has none, or it cannot be read."""
    try:
        settings = yaml.safe_load(store.meta("config") or "")
    except yaml.YAMLError:
        return {}
    return settings if isinstance(settings, dict) else {}


def _last_start(store: RunStore) -> tuple[float | None, Mapping[str, Any]]:
    sql = "SELECT time, data FROM events WHERE kind IN ('run_started', 'run_resumed') ORDER BY rowid DESC LIMIT 1"
    found = store.rows(sql)
    return (found[0][0], json.loads(found[0][1])) if found else (None, {})


def _last_change(store: RunStore) -> float | None:
    """Return when the newest rollout, event or metric was stored."""
    newest = "SELECT {} FROM {} ORDER BY rowid DESC LIMIT 1"
    places = (("finished_at", "trajectories"), ("time", "events"), ("time", "metrics"))
    times = [row[0] for place in places for row in store.rows(newest.format(*place))]
    return max(times, default=None)


def _read_summary(folder: Path, started_at: float | None) -> Mapping[str, Any]:
    path = folder / SUMMARY_NAME
    try:
        if started_at is not None and path.stat().st_mtime < started_at:
            return {}
        summary = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}


def _read_stages(store: RunStore) -> tuple[StageFacts, ...]:
    """Return the stages in the order in which they began; evaluations count as a stage if they have episodes."""
    settings = read_settings(store)
    sql = (
        "SELECT stage, COUNT(*), SUM(passed), SUM(failure IS NOT NULL OR rejected IS NOT NULL), MIN(finished_at) "
        "FROM trajectories GROUP BY stage"
    )
    rollouts = {stage: (count, passed, lost, first) for stage, count, passed, lost, first in store.rows(sql)}
    sql = "SELECT stage, COUNT(DISTINCT step), MAX(step), MIN(time) FROM metrics GROUP BY stage"
    steps = {stage: (count, newest, first) for stage, count, newest, first in store.rows(sql)}
    firsts = {
        stage: min(at for at in (rollouts.get(stage, [0])[-1], steps.get(stage, [0])[-1]) if at)
        for stage in {*rollouts, *steps}
    }
    out = []
    for name in sorted(firsts, key=firsts.__getitem__):
        episodes, passed, lost, _ = rollouts.get(name, (0, 0, 0, 0))
        done, newest, _ = steps.get(name, (0, 0, 0))
        out.append(
            StageFacts(name, episodes, passed, lost, done, _planned(settings, name), _metrics(store, name, newest))
        )
    return tuple(stage for stage in out if stage.episodes or stage.name.partition(".")[0] != EVAL)


def _planned(settings: Mapping[str, Any], stage: str) -> int | None:
    """Return how many steps the run file asks of a stage."""
    section = settings.get(stage)
    if not isinstance(section, dict) or section.get("stages"):
        return None
    steps = section.get("steps", _DEFAULT_STEPS.get(stage))
    return steps if isinstance(steps, int) else None


def _metrics(store: RunStore, stage: str, step: int) -> Mapping[str, float]:
    sql = "SELECT name, value FROM metrics WHERE stage = ? AND step = ? ORDER BY name"
    return {name: math.nan if value is None else value for name, value in store.rows(sql, (stage, step))}


def _read_evaluations(store: RunStore, heldout: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return the figures of each evaluation by its label, which the summary knows once the run has ended."""
    labels = {int(figures["step"]): label for label, figures in heldout.items()}
    found: dict[int, dict[str, Any]] = {}
    sql = "SELECT stage, step, name, value FROM metrics WHERE stage = ? OR stage LIKE ? ORDER BY step, stage, rowid"
    with_sft = bool(store.rows("SELECT 1 FROM metrics WHERE stage = 'sft' LIMIT 1"))
    for stage, step, name, value in store.rows(sql, (EVAL, f"{EVAL}.%")):
        figures = found.setdefault(step, {})
        if of := stage.partition(".")[2]:
            figures = figures.setdefault("sets", {}).setdefault(of, {})
        whole = name in ("episodes", "tasks") and value is not None
        figures[name] = int(value) if whole else math.nan if value is None else value
    return {
        labels.get(step) or _default_label(step, with_sft): {**figures, "step": step}
        for step, figures in found.items()
        if "success" in figures
    }


def _default_label(step: int, with_sft: bool) -> str:
    if step == BEFORE_SFT_STEP:
        return "before_sft"
    if step == 0:
        return "after_sft" if with_sft else "before_rl"
    return f"step_{step}"


def why_lost(t: Trajectory) -> str:
    """Return why an episode failed or was rejected; nothing if it was not."""
    if t.failure is not None:
        return t.failure.message
    return ": ".join(text for text in (t.rejected, t.rejected_because) if text)
