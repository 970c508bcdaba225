"""The metrics of the rollouts of a step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import pstdev

from ale.trajectory import CUT_OFF, Trajectory


def rollout_metrics(trajectories: Sequence[Trajectory], version: int) -> dict[str, float]:
    """Compute the metrics of a step's rollouts; `version` is the policy version that the step trains from."""
    n = len(trajectories)
    ages = sorted(version - t.policy_version for t in trajectories)
    chunks = [c for t in trajectories for c in t.chunks]
    own = [c for t in trajectories for c in t.turns if c.sampled]
    errors = Counter(c.error.kind for c in own if c.error is not None)
    selected: dict[str, list[bool]] = {}
    for t in trajectories:
        for section, use in t.made_with:
            selected.setdefault(f"success/{section}:{use}", []).append(t.passed)
    whole = [t.passed for t in trajectories if not t.start_chunk]
    if 0 < len(whole) < n:
        selected["success_from_beginning"] = whole
    scores = [t.reward for t in trajectories if t.reward is not None]
    rewards = [score.value for score in scores]
    parts: dict[str, list[float]] = {}
    for score in scores:
        for name, value in score.parts.items():
            parts.setdefault(f"parts/{name}", []).append(value)
    lengths = [len(c) for c in own] or [0]
    histogram = {f"staleness/{age}": count / n for age, count in sorted(Counter(ages).items())}
    return {name: sum(passed) / len(passed) for name, passed in selected.items()} | {
        "success": sum(t.passed for t in trajectories) / n,
        "reward": sum(rewards) / n,
        "reward_std": pstdev(rewards) if rewards else 0.0,
        "rollouts": float(n),
        "chunks": len(chunks) / n,
        "chunk_tokens": sum(map(len, own)) / max(1, len(own)),
        "chunk_tokens_min": float(min(lengths)),
        "chunk_tokens_max": float(max(lengths)),
        "cut_replies": sum(c.finish_reason == "length" for c in own) / max(1, len(own)),
        "sampled_tokens": float(sum(t.sampled_tokens for t in trajectories)),
        "illegal_calls": errors["illegal_call"] / max(1, len(own)),
        "failed_executions": errors["execution_failed"] / max(1, len(own)),
        "branches": sum(max(0, len(t.sequences) - 1) for t in trajectories) / n,
        "side_calls": sum(c.side for c in chunks) / n,
        "changed_echoes": sum(t.changed_echoes for t in trajectories) / n,
        "template_rewrites": sum(t.template_rewrites for t in trajectories) / n,
        "budget_ended": sum(t.ended_by in CUT_OFF for t in trajectories) / n,
        "start_chunk": sum(t.start_chunk for t in trajectories) / n,
        "staleness": sum(ages) / n,
        "staleness_p95": float(ages[math.ceil(0.95 * n) - 1]),
        "staleness_max": float(ages[-1]),
        "episode_s": sum(t.seconds for t in trajectories) / n,
        **histogram,
        **{name: sum(values) / len(values) for name, values in parts.items()},
    }


def is_even(rollouts: Sequence[Trajectory]) -> bool:
    """Return whether the rollouts of each group have equal rewards, those of steps too."""
    rewards: dict[str, set[tuple[float, ...]]] = {}
    for t in rollouts:
        if t.reward is not None:
            rewards.setdefault(t.group, set()).add((t.reward.value, *t.reward.by_chunk))
    return all(len(values) == 1 for values in rewards.values()) and bool(rewards)
