"""`ale lab` as a user types it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import ale

from ale_lab.catalogue import EXPERIMENTS


def lab(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `ale lab` to its end."""
    return ale("lab", *arguments)


@pytest.mark.slow
@pytest.mark.bwrap
@pytest.mark.usefixtures("forked_runs")
def test_an_experiment_runs_is_drawn_and_is_not_run_twice(tmp_path: Path) -> None:
    done = lab("fig12", "--quick", "--jobs", "2", "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "quick" / "fig12"
    assert done.stdout.splitlines()[-1] == str(folder / "figure.png")
    assert (folder / "figure.png").stat().st_size > 5000
    assert done.stdout.count(": done after") == 4, "a warm start and three arms"
    text = (folder / "table.md").read_text()
    assert text in done.stdout
    assert [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")][2:5] == [
        "| naive",
        "| rollback",
        "| rollback-no-imitation",
    ]
    (folder / "figure.png").unlink()
    again = lab("fig12", "--quick", "--draw-only", "--out", tmp_path)
    assert again.returncode == 0, again.stderr
    assert ": done after" not in again.stdout
    assert (folder / "figure.png").is_file()
    assert (folder / "table.md").read_text() == text


def test_drawing_what_was_never_run_is_a_sentence(tmp_path: Path) -> None:
    done = lab("fig12", "--draw-only", "--out", tmp_path)
    assert done.returncode == 2
    assert "There is no finished run for 'dials, seed 1: warm start'" in done.stderr
    assert "leave --draw-only out" in done.stderr


def test_seeds_of_the_search_are_not_reported(tmp_path: Path) -> None:
    done = lab("compare", "--seeds", "1-3", "--search-seeds", "3", "--out", tmp_path)
    assert done.returncode == 2
    assert "The seeds 3 are those of the search; report others." in done.stderr


def test_what_an_arm_lacks_is_told_before_anything_runs(tmp_path: Path) -> None:
    code = (
        "import asyncio; from pathlib import Path; from ale.errors import ConfigError; from dataclasses import replace;"
        "from ale_lab.catalogue import FIG13; from ale_lab.experiment import Arm;"
        "from ale_lab.experiment_runner import ExperimentRunner;"
        "wrong = replace(FIG13, arms=(*FIG13.arms, Arm('x', ('algorithm.use=gone',))));"
        f"asyncio.run(ExperimentRunner(Path({str(tmp_path)!r}), quick=True).run_experiment(wrong, (1,)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "algorithm: there is no algorithm plugin 'gone'" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_file_as_out_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = lab("fig12", "--out", tmp_path / "file")
    assert done.returncode == 2
    assert "error: The folder of the lab" in done.stderr
    assert "cannot be made: Not a directory. Name another one." in done.stderr


def test_help_lists_the_experiments() -> None:
    done = lab("--help")
    assert done.returncode == 0
    assert all(name in done.stdout for name in EXPERIMENTS)
