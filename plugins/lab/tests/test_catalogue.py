"""The experiments: every arm is a valid run, compared at equal budgets, from one warm start a seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ale.errors import ConfigError
from ale_lab.catalogue import EXPERIMENTS
from ale_lab.commands import read_seeds
from ale_lab.curve_summaries import SUMMARIES
from ale_lab.experiment import Experiment
from ale_lab.run_plan import Plan, Run
from ale_train.config.load import load_run_config

EACH = pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda e: e.name)


def budget(run: Run) -> tuple[object, ...]:
    """What decides how many rollouts an arm makes, and how it is evaluated."""
    config = load_run_config(run.recipe, list(run.overrides)).run
    assert config.rl is not None
    size = config.algorithm.settings["group_size"]
    return config.rl.steps, config.rl.prompts_per_step, size, config.eval, config.tasks, config.rollout


@pytest.mark.parametrize("quick", [False, True])
@EACH
def test_every_arm_is_a_valid_run_with_the_same_budget(experiment: Experiment, quick: bool, tmp_path: Path) -> None:
    plan = Plan(tmp_path, quick)
    warm = plan.warm_start(experiment, 7)
    assert load_run_config(warm.recipe, list(warm.overrides)).run.sft is not None
    assert load_run_config(warm.recipe, list(warm.overrides)).run.rl is None
    (warm.folder / "model" / "sft").mkdir(parents=True)
    runs = [plan.arm(experiment, arm, 7) for arm in experiment.arms]
    assert len({run.folder for run in runs}) == len(runs)
    first, *others = [budget(run) for run in runs]
    assert all(other == first for other in others)
    for run in runs:
        config = load_run_config(run.recipe, list(run.overrides)).run
        assert config.seed == 7
        assert config.sft is None
        assert config.model.path == warm.folder / "model" / "sft"


@EACH
def test_what_is_shown_is_what_can_be_read(experiment: Experiment) -> None:
    for part in (*experiment.panels, *experiment.columns):
        assert part.summary in SUMMARIES or not part.summary
    probed = {part.series for part in experiment.panels if part.series.startswith("heldout/")}
    assert bool(probed) == (experiment.probe is not None)


def test_probes_are_of_the_start_and_of_each_checkpoint(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["fig13"]
    assert experiment.probe is not None
    arm = experiment.arms[0]
    for step in (20, 5):
        (tmp_path / "fig13" / "seed-2" / arm.name / "checkpoints" / f"step_{step}").mkdir(parents=True)
    (Plan(tmp_path).warm_start(experiment, 2).folder / "model" / "sft").mkdir(parents=True)
    made = Plan(tmp_path).probes(experiment, experiment.probe, arm, 2)
    assert [step for step, _ in made] == [0, 5, 20]
    for _, run in made:
        config = load_run_config(run.recipe, list(run.overrides)).run
        assert (config.eval.split, config.rl, config.sft) == ("heldout", None, None)


@pytest.mark.parametrize(("text", "seeds"), [("1", (1,)), ("1-3", (1, 2, 3)), ("5, 1-2,2", (5, 1, 2)), ("0-0", (0,))])
def test_seeds_are_numbers_and_ranges(text: str, seeds: tuple[int, ...]) -> None:
    assert read_seeds(text, "--seeds") == seeds


@pytest.mark.parametrize("text", ["", "x", "3-1", "-1", "1-", "1,,2", "1-999999999"])
def test_other_seeds_are_a_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match="--seeds takes numbers and ranges, such as 1,2,5 or 1-5"):
        read_seeds(text, "--seeds")
