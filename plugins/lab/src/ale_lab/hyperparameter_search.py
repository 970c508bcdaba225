"""Tunes the arms of an experiment by the same small search, on seeds that are not reported.

For each arm: every learning rate with the first value of its own setting; then the other values at the best learning
rate. The best is the one with the largest `judged_by`, mean over the search's seeds; of equals the earlier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ale_lab.experiment import Arm, Experiment, Search

Score = Callable[[Arm], float]


@dataclass(frozen=True, slots=True)
class Choice:
    """The learning rate and the value of its own setting with which an arm did best."""

    rate: float
    value: float


def find_arm(experiment: Experiment, search: Search) -> Arm:
    """The arm that a search tunes."""
    return next(arm for arm in experiment.arms if arm.name == search.arm)


def make_trial(experiment: Experiment, search: Search, choice: Choice) -> Arm:
    """The arm with these values, which its name shows."""
    arm = with_choice(find_arm(experiment, search), search, choice)
    return replace(arm, name=f"{arm.name}-lr{choice.rate:g}-{choice.value:g}")


def with_choice(arm: Arm, search: Search, choice: Choice) -> Arm:
    """The arm with these values."""
    own = (f"rl.lr={choice.rate:g}", f"{search.key}={choice.value:g}")
    return replace(arm, overrides=(*arm.overrides, *own))


def learning_rate_trials(experiment: Experiment, search: Search) -> dict[Choice, Arm]:
    """The trials of the search's first half: one for each learning rate."""
    choices = [Choice(rate, search.values[0]) for rate in search.rates]
    return {choice: make_trial(experiment, search, choice) for choice in choices}


def setting_trials(experiment: Experiment, search: Search, rate: float) -> dict[Choice, Arm]:
    """The trials of the second half: each value of the setting at that learning rate; the first is already known."""
    choices = [Choice(rate, value) for value in search.values]
    return {choice: make_trial(experiment, search, choice) for choice in choices}


def best_choice(tried: Mapping[Choice, Arm], score: Score) -> Choice:
    """The choice that scores highest; of equals the earlier."""
    return max(tried, key=lambda choice: score(tried[choice]))


def apply_choices(experiment: Experiment, chosen: Mapping[str, Choice]) -> Experiment:
    """The experiment with the chosen values in its arms, or in the arms of its lines."""
    of = {search.arm: search for search in (experiment.tuned_as or experiment).searches}
    arms = [
        with_choice(arm, of[name], chosen[name]) if (name := arm.line or arm.name) in chosen else arm
        for arm in experiment.arms
    ]
    return replace(experiment, arms=tuple(arms))


def describe_search(experiment: Experiment, chosen: Mapping[str, Choice], seeds: Sequence[int]) -> str:
    """The sentence below the table about how the arms were tuned."""
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
