"""Turns what a reward function returns into a score, and several scores into one.

- A number is the value. A bool also says whether the episode passed.
- A dict of numbers is a score with parts: `reward`, or else their sum, is the value.
- A list of numbers has one reward for each turn of the episode; their sum is the value.
- A `Score` is taken as it is. None means that the function does not apply to this episode.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ale.errors import PluginError
from ale.registry.validation import format_value
from ale.trajectory import Score, Trajectory

ROUNDING = 1e-9
"""What weights such as 0.7 + 0.2 + 0.1 may miss their sum by."""


def reaches(value: float, pass_at: float) -> bool:
    """Return whether a value counts as success."""
    return value >= pass_at - ROUNDING


def read_returned(returned: Any, where: str, trajectory: Trajectory, pass_at: float) -> Score | None:
    """Return a function's result as a score, or None if it gave none.

    Raises `PluginError` with a sentence that names the function (`where`) if it is no score.
    """
    # Scalars and arrays of numpy and tensors of torch become numbers and lists.
    returned = returned.tolist() if hasattr(returned, "tolist") else returned
    if returned is None or isinstance(returned, Score):
        return returned
    if isinstance(returned, bool):
        return Score(float(returned), returned)
    if isinstance(returned, Mapping):
        parts = {str(name): as_number(value, f"{where}, under {name!r},") for name, value in returned.items()}
        value = parts["reward"] if "reward" in parts else math.fsum(parts.values())
        return Score(value, reaches(value, pass_at), parts=parts)
    if isinstance(returned, Sequence) and not isinstance(returned, str | bytes):
        return _spread_over_turns(returned, where, trajectory, pass_at)
    value = as_number(returned, where)
    return Score(value, reaches(value, pass_at))


def read_batch(returned: Any, where: str, trajectory: Trajectory, pass_at: float) -> Score | None:
    """Return the result of a function in TRL's form: a list with one number (or None) for the one completion.

    Raises `PluginError`.
    """
    returned = returned.tolist() if hasattr(returned, "tolist") else returned
    if not isinstance(returned, Sequence) or isinstance(returned, str | bytes) or len(returned) != 1:
        raise PluginError(
            f"{where} returned {format_value(returned)}; a function of 'prompts' and 'completions' must return a list "
            "with one number for each completion, and it got one completion."
        )
    return None if returned[0] is None else read_returned(as_number(returned[0], where), where, trajectory, pass_at)


def combine(scores: Mapping[str, tuple[float, Score]], pass_at: float) -> Score:
    """Return the weighted sum of named scores; each is a part of it, and so are their own parts as `name.part`."""
    value = math.fsum(weight * score.value for weight, score in scores.values())
    spread = [(weight, score.by_chunk) for weight, score in scores.values() if score.by_chunk]
    by_chunk = tuple(math.fsum(w * r for w, r in zip([w for w, _ in spread], rewards, strict=True))
                     for rewards in zip(*(steps for _, steps in spread), strict=True))  # fmt: skip
    parts: dict[str, float] = {}
    for name, (_, score) in scores.items():
        parts[name] = score.value
        parts |= {f"{name}.{part}": number for part, number in score.parts.items()}
    detail = "\n".join(f"{name}: {score.detail}" for name, (_, score) in scores.items() if score.detail)
    return Score(value, reaches(value, pass_at), detail, by_chunk=by_chunk, parts=parts)


def as_number(value: Any, where: str) -> float:
    """Return a finite number. Raises `PluginError`."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, int | float):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise PluginError(
        f"{where} returned {format_value(value)}; a reward must be a finite number, true or false, a list of numbers "
        "(one for each turn), a dict of numbers, an ale.trajectory.Score, or None for no reward."
    )


def _spread_over_turns(rewards: Sequence[Any], where: str, trajectory: Trajectory, pass_at: float) -> Score:
    numbers = [as_number(reward, where) for reward in rewards]
    if len(numbers) != len(trajectory.turns):
        raise PluginError(
            f"{where} returned {len(numbers)} numbers for an episode of {len(trajectory.turns)} turns; a list must "
            "have one for each turn (trajectory.turns)."
        )
    turns = iter(numbers)
    value = math.fsum(numbers)
    by_chunk = tuple(0.0 if chunk.side else next(turns) for chunk in trajectory.chunks)
    return Score(value, reaches(value, pass_at), by_chunk=by_chunk)
