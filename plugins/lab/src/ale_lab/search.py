"""Tunes the arms of an experiment by the same small search, on seeds that are not reported.

For each arm: every learning rate with the first value of its own setting; then the other values at the best learning rate.
The best is the one with the largest `judged_by`, mean over the search's seeds; of equals the earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ale_lab.experiment import Arm, Experiment, Search

Score = Callable[[Arm], float]


@dataclass(frozen=True, slots=True)
class Choice:
    """What an arm was found to be best with."""

    rate: float
    value: float


def named(experiment: Experiment, search: Search) -> Arm:
    """The arm that a search is for."""
    return next(arm for arm in experiment.arms if arm.name == search.arm)


def trial(experiment: Experiment, search: Search, choice: Choice) -> Arm:
    """The arm with these values; its name says them."""
    arm = with_choice(named(experiment, search), search, choice)
    return replace(arm, name=f"{arm.name}-lr{choice.rate:g}-{choice.value:g}")


def with_choice(arm: Arm, search: Search, choice: Choice) -> Arm:
    """The arm with these values."""
    own = (f"rl.lr={choice.rate:g}", f"{search.key}={choice.value:g}")
    return replace(arm, overrides=(*arm.overrides, *own))


def rates(experiment: Experiment, search: Search) -> dict[Choice, Arm]:
    """The first half: the learning rates."""
    choices = [Choice(rate, search.values[0]) for rate in search.rates]
    return {choice: trial(experiment, search, choice) for choice in choices}


def values(experiment: Experiment, search: Search, rate: float) -> dict[Choice, Arm]:
    """The second half: the setting's values at that learning rate, the first, which is known, among them."""
    choices = [Choice(rate, value) for value in search.values]
    return {choice: trial(experiment, search, choice) for choice in choices}


def best(tried: Mapping[Choice, Arm], score: Score) -> Choice:
    """The choice that scores highest; of equals the earlier."""
    return max(tried, key=lambda choice: score(tried[choice]))


def tuned(experiment: Experiment, chosen: Mapping[str, Choice]) -> Experiment:
    """The experiment with what was chosen in its arms, or in the arms of its lines."""
    of = {search.arm: search for search in (experiment.tuned_as or experiment).searches}
    arms = [
        with_choice(arm, of[name], chosen[name]) if (name := arm.line or arm.name) in chosen else arm
        for arm in experiment.arms
    ]
    return replace(experiment, arms=tuple(arms))


def note(experiment: Experiment, chosen: Mapping[str, Choice], seeds: Sequence[int]) -> str:
    """What stands below the table."""
    found = [
        f"`{search.arm}` lr {chosen[search.arm].rate:g}, {search.key.rpartition('.')[2]} {chosen[search.arm].value:g}"
        for search in experiment.searches
    ]
    tried = len(experiment.searches[0].rates) + len(experiment.searches[0].values) - 1
    return (
        f"Tuned by {tried} runs each (three learning rates, then two more values of its own setting) on the "
        f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))} by {experiment.judged_by.title} of "
        f"{experiment.judged_by.series}: {'; '.join(found)}."
    )
