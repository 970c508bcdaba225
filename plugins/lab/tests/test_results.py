"""What is shown of an experiment: numbers with intervals, differences seed by seed, curves, a picture."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ale_lab.experiment import Arm, Column, Experiment, Panel
from ale_lab.figure import draw
from ale_lab.results import Results, format_table, results_as_json, write_results

LAGS = Experiment(
    "lags",
    "Some lags",
    "mix",
    (Arm("a 0", ("x=1",), "a", 0), Arm("a 4", (), "a", 4), Arm("b 0", (), "b", 0)),
    (
        Panel("Curves", "eval/success", "success", each_seed=True),
        Panel("At the end", "eval/success", "success", "last"),
    ),
    (Column("final", "eval/success", "last"), Column("height", "eval/success", "area")),
    overrides=("y=2",),
    setting="lag",
)


def results(seeds: tuple[int, ...] = (1, 2)) -> Results:
    """Arm number i of seed s goes from 0 to 0.1 i + s / 100."""
    series = {
        arm.name: {s: {"eval/success": [(0.0, 0.0), (5.0, 0.1 * i + s / 100)]} for s in seeds}
        for i, arm in enumerate(LAGS.arms)
    }
    return Results(LAGS, seeds, series, {arm.name: dict.fromkeys(seeds, (60.0, 500.0)) for arm in LAGS.arms})


def test_the_table_has_a_row_an_arm_with_intervals() -> None:
    lines = format_table(results()).splitlines()
    assert lines[0] == "# Some lags"
    assert "Seeds: 1, 2." in lines[2]
    assert lines[4] == "| arm | final | height | rollouts | seconds |"
    assert lines[6] == "| a 0 | 0.015 [0.01, 0.02] | 0.0075 [0.005, 0.01] | 500 | 60 |"
    assert lines[8].startswith("| b 0 | 0.215 [0.21, 0.22] |")


def test_differences_are_taken_seed_by_seed() -> None:
    apart = replace(results(), experiment=replace(LAGS, setting=""))
    _, differences = format_table(apart).split("Difference from `a 0`, paired by seed:")
    assert "| a 4 | 0.1 [0.1, 0.1] | 0.05 [0.05, 0.05] |" in differences, (
        "what the seeds share is no doubt about the arms"
    )
    assert "| b 0 | 0.2 [0.2, 0.2] | 0.1 [0.1, 0.1] |" in differences


def test_over_a_setting_each_line_is_compared_with_its_own_first() -> None:
    _, differences = format_table(results()).split("Difference from the first of its line, paired by seed:")
    assert "| a 4 | 0.1 [0.1, 0.1] | 0.05 [0.05, 0.05] |" in differences
    assert "| a 0 |" not in differences
    assert "| b 0 |" not in differences


def test_one_seed_has_no_interval() -> None:
    assert "| a 4 | 0.11 | 0.055 | 500 | 60 |" in format_table(results((1,)))


def test_a_band_is_over_the_steps_that_all_seeds_have() -> None:
    made = results()
    made.series["a 0"][2]["eval/success"] = [(5.0, 0.5)]  # type: ignore[index]
    steps, band = made.band("a 0", "eval/success")
    assert steps == [5.0]
    assert band[0].mean == pytest.approx(0.255)
    assert made.band("a 0", "rl/nothing") == ([], [])


def test_the_data_hold_every_curve_and_every_number(tmp_path: Path) -> None:
    write_results(results(), tmp_path / "new")
    data = json.loads((tmp_path / "new" / "data.json").read_text())
    assert data == json.loads(json.dumps(results_as_json(results())))
    arm = data["arms"]["a 0"]
    assert arm["overrides"] == ["y=2", "x=1"]
    assert arm["series"]["eval/success"]["2"] == [[0, 0], [5, 0.02]]
    assert arm["columns"]["final"]["of_seeds"] == [0.01, 0.02]
    assert (tmp_path / "new" / "table.md").read_text() == format_table(results())


def test_the_picture_is_drawn_without_a_window_system(tmp_path: Path) -> None:
    draw(results(), tmp_path / "deep" / "figure.png")
    assert (tmp_path / "deep" / "figure.png").read_bytes().startswith(b"\x89PNG")
    code = "import sys, ale_lab.figure, ale_lab.commands; print([m for m in sys.modules if 'matplotlib' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", "the command line must not wait for the drawing library"
