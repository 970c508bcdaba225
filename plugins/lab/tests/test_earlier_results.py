"""What stands in the data of an earlier lab is not made again, wherever its run folders are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ale.errors import ConfigError
from ale_lab.catalogue import COMPARE, FIG12, FIG13
from ale_lab.earlier_results import EarlierResults, read_earlier_results
from ale_lab.experiment import Arm, Experiment
from ale_lab.experiment_runner import ExperimentRunner
from ale_lab.hyperparameter_search import Choice, apply_choices
from ale_lab.results import Results, format_table, write_results
from ale_lab.run_plan import Plan


def made(experiment: Experiment, seeds: tuple[int, ...], chosen: dict[str, Choice] | None = None) -> Results:
    """What a lab would have found; each curve goes up to its seed's tenth."""
    names = [arm.name for arm in experiment.arms]
    series = {
        n: {s: {part: [(0.0, 0.0), (4.0, s / 10)] for part in experiment.series_names} for s in seeds} for n in names
    }
    costs = {n: {s: (60.0 + s, 500.0) for s in seeds} for n in names}
    settings = {arm.name: Plan(Path("/gone")).settings(experiment, arm) for arm in experiment.arms}
    return Results(experiment, seeds, series, costs, (), chosen or {}, (101,) if chosen else (), settings)


async def test_what_is_known_is_shown_and_nothing_is_made(tmp_path: Path) -> None:
    before = made(FIG13, (1, 2))
    write_results(before, tmp_path)
    lab = ExperimentRunner(tmp_path / "out", draw_only=True)
    after = await lab.run_experiment(FIG13, (1, 2), known=read_earlier_results([tmp_path / "data.json"]))
    assert format_table(after) == format_table(before)
    assert after.series == before.series
    assert not (tmp_path / "out").exists()
    marks = [panel.marks for panel in FIG12.panels if panel.marks]
    assert set(marks) < set(FIG12.series_names), "what is drawn as crosses is kept too"


async def test_only_what_is_not_known_is_asked_for(tmp_path: Path) -> None:
    write_results(made(FIG12, (1, 3)), tmp_path)
    known = read_earlier_results([tmp_path / "data.json"])
    lab = ExperimentRunner(tmp_path / "out", draw_only=True)
    with pytest.raises(ConfigError, match=r"'dials, seed 2: warm start' .*1 are missing"):
        await lab.run_experiment(FIG12, (1, 2, 3), known=known)
    other = replace(FIG12, arms=(*FIG12.arms, Arm("more", ("rl.lr=0.5",))))
    with pytest.raises(ConfigError, match=r"'dials, seed 1: warm start' .*2 are missing"):
        await lab.run_experiment(other, (1, 3), known=known)


async def test_short_runs_are_not_taken_for_whole_ones(tmp_path: Path) -> None:
    write_results(made(FIG12, (1,)), tmp_path)
    known = read_earlier_results([tmp_path / "data.json"])
    with pytest.raises(ConfigError, match="There is no finished run"):
        await ExperimentRunner(tmp_path, quick=True, draw_only=True).run_experiment(FIG12, (1,), known=known)
    with pytest.raises(ConfigError, match=r"data\.json is not of a lab with --quick; leave it out"):
        read_earlier_results([tmp_path / "data.json"], quick=True)


def test_of_a_run_in_two_files_is_known_what_either_has(tmp_path: Path) -> None:
    whole = made(FIG12, (1,))
    write_results(whole, tmp_path / "a")
    write_results(made(replace(FIG12, panels=FIG12.panels[2:], columns=FIG12.columns[:1]), (1,)), tmp_path / "b")
    for order in ("ab", "ba"):
        known = read_earlier_results([tmp_path / name / "data.json" for name in order])
        assert all(known.has(FIG12, settings, 1) for settings in whole.settings.values())


def test_a_run_of_which_less_was_kept_than_is_shown_is_not_known() -> None:
    settings = Plan(Path("/")).settings(FIG12, FIG12.arms[0])
    (whole,) = made(FIG12, (1,)).series["naive"].values()
    for missing in whole:
        less = {name: curve for name, curve in whole.items() if name != missing}
        assert not EarlierResults(series={(settings, 1): less}).has(FIG12, settings, 1)
    assert EarlierResults(series={(settings, 1): whole}).has(FIG12, settings, 1)
    assert not EarlierResults(series={(settings, 1): whole}).has(FIG12, settings, 2)


def test_every_arm_has_settings_of_its_own_that_say_nothing_of_folders(tmp_path: Path) -> None:
    arms = [(experiment, arm) for experiment in (FIG12, FIG13, COMPARE) for arm in experiment.arms]
    of = [Plan(tmp_path).settings(*each) for each in arms]
    assert len(set(of)) == len(arms)
    assert of == [Plan(Path("/other")).settings(*each) for each in arms]
    probed = replace(FIG13, probe=None)
    assert Plan(tmp_path).settings(FIG13, FIG13.arms[0]) != Plan(tmp_path).settings(probed, FIG13.arms[0])


def test_another_warm_start_is_another_setting(tmp_path: Path) -> None:
    arm = FIG12.arms[0]
    longer = replace(FIG12, recipe="mix")
    assert Plan(tmp_path).settings(FIG12, arm) != Plan(tmp_path).settings(longer, arm)
    folder, quick = (Plan(tmp_path, quick).warm_start(FIG12, 1).folder for quick in (False, True))
    assert folder != quick
    assert f'"{folder}/model/sft"' in "".join(Plan(tmp_path).arm(FIG12, arm, 1).overrides)


async def test_a_search_that_was_made_is_taken_from_the_data(tmp_path: Path) -> None:
    chosen = {search.arm: Choice(search.rates[1], search.values[2]) for search in COMPARE.searches}
    write_results(made(apply_choices(COMPARE, chosen), (1,), chosen), tmp_path)
    known = read_earlier_results([tmp_path / "data.json"])
    assert known.choices(COMPARE) == chosen
    lab = ExperimentRunner(tmp_path, draw_only=True)
    again = await lab.run_experiment(COMPARE, (1,), (7,), known)
    assert "on the seed 101 by area" in format_table(again)
    assert again.search_seeds == (101,)
    with pytest.raises(ConfigError, match="The seeds 101 are those of the search; report others"):
        await lab.run_experiment(COMPARE, (1, 101), (7,), known)
    assert EarlierResults({"grpo": chosen["grpo"]}).choices(COMPARE) is None, "then all are searched"


def test_two_searches_that_found_different_things_are_refused(tmp_path: Path) -> None:
    for i in range(2):
        chosen = {search.arm: Choice(search.rates[i], search.values[0]) for search in COMPARE.searches}
        write_results(made(COMPARE, (1,), chosen), tmp_path / str(i))
    with pytest.raises(ConfigError, match=r"data\.json has other settings for 'grpo' than a file before it"):
        read_earlier_results([tmp_path / "0" / "data.json", tmp_path / "1" / "data.json"])


@pytest.mark.parametrize("text", ["x", "[]", "{}", '{"seeds": [1], "arms": {"a": 3}, "tuned": {}}', '{"tuned": 3}'])
def test_other_files_are_a_sentence(tmp_path: Path, text: Any) -> None:
    (tmp_path / "data.json").write_text(text)
    with pytest.raises(ConfigError, match=r"--known .*data\.json is not the data\.json of an `ale lab` experiment: \S"):
        read_earlier_results([tmp_path / "data.json"])


def test_a_missing_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--known .* cannot be read: No such file or directory"):
        read_earlier_results([tmp_path / "gone.json"])


def test_costs_that_were_not_kept_are_left_open(tmp_path: Path) -> None:
    results = made(FIG12, (1, 2))
    write_results(results, tmp_path)
    data = json.loads((tmp_path / "data.json").read_text())
    assert data["arms"]["naive"]["costs"] == {"1": [61.0, 500.0], "2": [62.0, 500.0]}
    costs = {arm.name: {} for arm in FIG12.arms} | {
        "naive": {2: (70.0, 500.0)},
        "rollback": {1: (60.0, 500.0), 2: (70.0, 500.0)},
    }
    lines = format_table(replace(results, costs=costs)).splitlines()
    rows = [line for line in lines if line.startswith(("| naive |", "| rollback |"))]
    assert rows[0].endswith(" | – | – |")
    assert rows[1].endswith(" | 500 | 65 |")
