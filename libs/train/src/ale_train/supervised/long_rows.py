"""Demonstrations that are longer than the model's context, or than `sft.max_tokens`: dropped, cut off or refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ale.errors import ConfigError
from ale.specs.choice import Overlong
from ale.trajectory import Trajectory
from ale_train.config.run import ModelConfig
from ale_train.config.supervised import SFTConfig
from ale_train.models.policy_checks import model_context

SHOWN = 3


def longest_sequence(config: SFTConfig, model: ModelConfig) -> int | None:
    """Return how many tokens a sequence may have; None if nothing says it."""
    context = model.scratch.max_length if model.scratch is not None else None
    if model.path is not None:
        context = model_context(model.path)
    return min((limit for limit in (config.max_tokens, context) if limit is not None), default=None)


def count_tokens(trajectory: Trajectory) -> int:
    """Return the number of tokens of the longest sequence, up to the end of its last reply."""
    return max((chunk.end for chunk in trajectory.chunks), default=0)


def find_overlong(trajectories: Iterable[Trajectory], longest: int | None) -> dict[str, int]:
    """Return the demonstrations with a sequence that is too long, and the tokens of that sequence."""
    if longest is None:
        return {}
    return {t.id: tokens for t in trajectories if (tokens := count_tokens(t)) > longest}


def fit(trajectories: Sequence[Trajectory], longest: int | None, overlong: Overlong) -> list[Trajectory]:
    """Return the demonstrations without those that are too long, or with these cut off. One whose first reply begins
    beyond the limit has nothing left to train on. Raises `ConfigError` if none is left."""
    if longest is None:
        return list(trajectories)
    out = []
    for trajectory in trajectories:
        if count_tokens(trajectory) <= longest:
            out.append(trajectory)
        elif overlong == "truncate" and (left := cut_off(trajectory, longest)).chunks:
            out.append(left)
    if not out:
        raise ConfigError(
            f"sft.overlong: no demonstration has a reply that begins within {longest} tokens, the model's context or "
            "sft.max_tokens; take a model with a longer context."
        )
    return out


def cut_off(trajectory: Trajectory, longest: int) -> Trajectory:
    """Return a demonstration whose sequences have at most `longest` tokens."""
    kept = [chunk for chunk in trajectory.chunks if chunk.start < longest]
    chunks = [
        replace(
            chunk,
            index=i,
            end=min(chunk.end, longest),
            logprobs=chunk.logprobs[: longest - chunk.start],
            versions=chunk.versions[: longest - chunk.start],
            finish_reason="length" if chunk.end > longest else chunk.finish_reason,
        )
        for i, chunk in enumerate(kept)
    ]
    reward = trajectory.reward
    if reward is not None and reward.by_chunk:
        reward = replace(reward, by_chunk=tuple(reward.by_chunk[chunk.index] for chunk in kept))
    sequences = tuple(replace(one, token_ids=one.token_ids[:longest]) for one in trajectory.sequences)
    return replace(trajectory, sequences=sequences, chunks=tuple(chunks), observations=(), reward=reward)


def describe_overlong(found: dict[str, int], of: int, longest: int, overlong: Overlong, words: str = "") -> str:
    """Return a line about demonstrations that are too long. Raises `ConfigError` if they end the run (`fail`), or if
    none is left."""
    shown = ", ".join(f"{name}: {tokens} tokens" for name, tokens in [*found.items()][:SHOWN])
    more = ", ..." if len(found) > SHOWN else ""
    what = (
        f"sft.overlong: {len(found)} of {of} demonstrations{words} have a sequence of more than {longest} tokens, the "
        f"model's context or sft.max_tokens ({shown}{more})"
    )
    if overlong == "fail" or (overlong == "drop" and len(found) == of):
        raise ConfigError(
            f"{what}. Set sft.overlong to 'drop' (leave such demonstrations out, where others are left) or 'truncate' "
            "(cut them off there), or take a model with a longer context."
        )
    return f"{what}; they are {'cut off there' if overlong == 'truncate' else 'dropped'}"
