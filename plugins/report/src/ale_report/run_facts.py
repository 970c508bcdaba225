"""The facts at the head of the report: from summary.json where the run has ended, else from the database.

A run without a summary is still running, or was killed. A summary that is older than the last start belongs to an
earlier attempt and is not used.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ale.store.run_store import SUMMARY_NAME, LostEpisodes, RunStore
from ale_report.events import newest_events

Metrics = dict[str, dict[str, list[tuple[int, float]]]]
"""Stage -> metric -> [(step, value), ...]."""

EVAL_STAGE, CPT_STAGE, SFT_STAGE, RL_STAGE = "eval", "cpt", "sft", "rl"
BEFORE_SFT_STEP = -1
FINAL_MODEL = "model/final"
MAX_REASONS = 8
_WORDS = {"cpt": "CPT", "sft": "SFT", "rl": "RL"}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One round of held-out episodes; `low` and `high` bound the true rate with 95 % confidence, if that is known."""

    label: str
    step: int
    success: float
    episodes: int
    low: float | None
    high: float | None
    tasks: int | None = None
    reward: float | None = None
    tries: tuple[tuple[str, float], ...] = ()
    """pass@k for the largest k, and pass^k, if each task had several runs."""
    sets: tuple[tuple[str, float], ...] = ()
    """The success of each named evaluation set."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The head of the report. None where a number is not known (yet)."""

    run_id: str
    status: str
    error: str | None
    seed: int | None
    started_at: float | None
    seconds: float | None
    evaluations: tuple[Evaluation, ...]
    stage_seconds: dict[str, float]
    rollouts: int
    sampled_tokens: int
    tokens_per_s: float | None
    peak_memory_mib: float | None
    policy_version: int | None
    failures: dict[str, int]
    lost: tuple[LostEpisodes, ...]
    folder: str
    """The run folder, as it was named."""
    has_model: bool
    """Whether the final policy is in it."""


def wilson(successes: float, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval of a success rate, honest also near 0 and 1 and with few trials."""
    if trials <= 0:
        return 0.0, 1.0
    rate = successes / trials
    middle = rate + z * z / (2 * trials)
    half = z * ((rate * (1 - rate) + z * z / (4 * trials)) / trials) ** 0.5
    scale = 1 + z * z / trials
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def read_metrics(store: RunStore) -> Metrics:
    """All metrics of all stages."""
    return {stage: store.metrics(stage) for stage in store.stages()}


def read_facts(store: RunStore, metrics: Metrics) -> RunFacts:
    """Everything that the head of the report needs."""
    starts = [(when, data) for when, kind, data in newest_events(store, 1) if kind == "run_started"]
    started_at, start = starts[-1] if starts else (None, {})
    summary = _summary(store.folder, started_at)
    seconds = summary.get("seconds") or {}
    rl = metrics.get(RL_STAGE, {})
    if not seconds:
        parts = {"rollout": _total(rl, "rollout_s"), "training": _total(rl, "train_s")}
        seconds = {name: value for name, value in parts.items() if value}
    total = seconds.get("total")
    return RunFacts(
        run_id=str(summary.get("run_id") or start.get("run_id") or store.folder.name),
        status=str(summary.get("status", "running")),
        error=summary.get("error"),
        seed=summary.get("seed", start.get("seed")),
        started_at=started_at,
        seconds=total,
        evaluations=evaluations(metrics, summary.get("heldout") or {}),
        stage_seconds={str(name): float(value) for name, value in seconds.items() if name != "total"},
        rollouts=store.count(),
        sampled_tokens=store.sampled_tokens(),
        tokens_per_s=summary.get("tokens_per_s") or _speed(rl),
        peak_memory_mib=summary.get("peak_memory_mib"),
        policy_version=summary.get("final_policy_version"),
        failures=store.failures(),
        lost=tuple(store.lost(MAX_REASONS)),
        folder=str(store.folder),
        has_model=(store.folder / FINAL_MODEL).is_dir(),
    )


def evaluations(metrics: Metrics, heldout: dict[str, Any]) -> tuple[Evaluation, ...]:
    """Every held-out round by step; names are the summary's where it has them."""
    found = {name: dict(points) for name, points in metrics.get(EVAL_STAGE, {}).items()}
    named = [stage for stage in eval_stages(metrics) if stage != EVAL_STAGE]
    several = sorted((int(name[5:]), name) for name in found if re.fullmatch(r"pass@\d+", name))
    k = several[-1][0] if several else 1
    names = {int(values["step"]): label for label, values in heldout.items()}
    rounds = []
    for step, success in found.get("success", {}).items():
        label = names.get(step) or _default_label(step, SFT_STAGE in metrics)
        n, tasks, reward = (found.get(name, {}).get(step) for name in ("episodes", "tasks", "reward"))
        low, high = (found.get(f"success_{bound}", {}).get(step) for bound in ("low", "high"))
        if tasks is None:  # a run of an earlier version
            low, high = wilson(success * (n or 0), int(n or 0))
        tries = [(name, found[name][step]) for name in (f"pass@{k}", f"pass^{k}") if step in found.get(name, {})]
        sets = [(s.partition(".")[2], dict(metrics[s].get("success", [])).get(step)) for s in named]
        rounds.append(
            Evaluation(
                label=_label_in_words(label),
                step=step,
                success=success,
                episodes=int(n or 0),
                low=low,
                high=high,
                tasks=None if tasks is None else int(tasks),
                reward=reward,
                tries=tuple(tries if k > 1 else ()),
                sets=tuple((name, value) for name, value in sets if value is not None),
            )
        )
    return tuple(rounds)


def eval_stages(metrics: Metrics) -> list[str]:
    """Return the stages of evaluations: `eval`, and `eval.<set>` for each named set."""
    return [stage for stage in metrics if stage.partition(".")[0] == EVAL_STAGE]


def headline(rounds: tuple[Evaluation, ...]) -> tuple[Evaluation, ...]:
    """The evaluations for the head of the page: before and after each stage, and the newest one."""
    return tuple(e for i, e in enumerate(rounds) if not e.label.startswith("at step") or i == len(rounds) - 1)


def _summary(folder: Path, started_at: float | None) -> dict[str, Any]:
    path = folder / SUMMARY_NAME
    try:
        if started_at is not None and path.stat().st_mtime < started_at:
            return {}
        summary = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}


def _default_label(step: int, has_sft: bool) -> str:
    if step == BEFORE_SFT_STEP:
        return "before_sft"
    if step == 0:
        return "after_sft" if has_sft else "before_rl"
    return f"step_{step}"


def _label_in_words(label: str) -> str:
    if " " in label:  # it is in words, and what it names may have underscores
        return label
    if label.startswith("step_"):
        return f"at step {label.removeprefix('step_')}"
    return " ".join(_WORDS.get(word, word) for word in label.split("_"))


def _total(stage: dict[str, list[tuple[int, float]]], name: str) -> float:
    return sum(value for _, value in stage.get(name, []))


def _speed(rl: dict[str, list[tuple[int, float]]]) -> float | None:
    tokens, seconds = _total(rl, "sampled_tokens"), _total(rl, "rollout_s")
    return tokens / seconds if tokens and seconds else None
