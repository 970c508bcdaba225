"""`ale compare`: runs side by side."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ale.errors import ConfigError
from ale.store.run_store import RunStore
from ale.trajectory import Score
from ale_report.commands import compare as command
from ale_report.run_comparison import compare, read_runs, shared_sets, table

from .conftest import Make, fill_run, finish, page_data
from .test_browser import CHROMIUM, dom


def evaluated(folder: Path, trajectory: Make, passes: dict[str, list[int]], stage: str = "eval", step: int = 4) -> Path:
    """A run folder with one evaluation: for each task, whether its runs passed."""
    with RunStore.create(folder) as store:
        for task, runs in passes.items():
            for i, passed in enumerate(runs):
                t = trajectory(f"{stage}-{step}-{task}-{i}", float(passed), stage=stage, step=step)
                store.add_trajectory(replace(t, task_id=task, reward=Score(passed / 2, bool(passed))))
        share = sum(map(sum, passes.values())) / sum(map(len, passes.values()))
        store.add_metrics(stage, step, {"success": share, "episodes": sum(map(len, passes.values()))})
        store.add_metrics("rl", step, {"reward": share, "success": share})
    return folder


HARD_AND_EASY = {"hard": [0, 0, 0, 0], "middle": [0, 1, 0, 1], "easy": [1, 1, 1, 1], "own": [0, 0, 0, 0]}
BETTER = {"hard": [0, 0, 0, 1], "middle": [1, 1, 0, 1], "easy": [1, 1, 1, 1], "other": [1, 1, 1, 1]}


def test_runs_are_compared_task_by_task_over_the_tasks_that_both_have(tmp_path: Path, trajectory: Make) -> None:
    first = evaluated(tmp_path / "first", trajectory, HARD_AND_EASY)
    other = evaluated(tmp_path / "other", trajectory, BETTER)
    runs = read_runs([first, other])
    assert shared_sets(runs) == [""]
    found = compare(runs[0].sets[""], runs[1].sets[""])
    assert found is not None
    assert found.tasks == 3
    assert found.success.value == pytest.approx((0.25 + 0.25 + 0) / 3)
    assert found.reward.value == pytest.approx(found.success.value / 2)
    assert found.success.low is not None
    assert found.success.low < found.success.value
    heads, *rows = table(runs, "")
    assert heads[:6] == ("RUN", "STEP", "SUCCESS", "MEAN REWARD", "PASS@4", "PASS^4")
    assert [row[0] for row in rows] == ["first", "other"]
    cells = dict(zip(heads, rows[1], strict=True))
    assert cells["PASS@4"].startswith("1.000 ")
    assert re.fullmatch(r"\+0\.167 \[-0\.\d+, \+0\.\d+\] \(3 tasks\)", cells["SUCCESS DIFFERENCE"])
    assert cells["RL STEPS"] == "4"


def test_runs_without_a_task_in_common_have_no_difference(tmp_path: Path, trajectory: Make) -> None:
    runs = read_runs([evaluated(tmp_path / name, trajectory, {name: [0, 1]}) for name in ("one", "two")])
    assert table(runs, "")[2][-5:-3] == ("no task in common", "")


def test_only_the_newest_evaluation_counts_and_sets_are_compared_one_by_one(tmp_path: Path, trajectory: Make) -> None:
    for name, better in (("one", 0), ("two", 1)):
        evaluated(tmp_path / name, trajectory, {"a": [1], "b": [1]}, "eval.easy", step=0)
        evaluated(tmp_path / name, trajectory, {"a": [better], "b": [better]}, "eval.easy")
        evaluated(tmp_path / name, trajectory, {"c": [0], "d": [better]}, "eval.hard")
    runs = read_runs([tmp_path / "one", tmp_path / "two"])
    assert shared_sets(runs) == ["easy", "hard"]
    assert table(runs, "easy")[1][2].startswith("0.000")
    assert table(runs, "hard")[2][2].startswith("0.500")
    third = evaluated(tmp_path / "third", trajectory, {"a": [1], "b": [1]})
    with pytest.raises(ConfigError, match=r"no evaluation set in common \(one: easy, hard; third: no named set\)"):
        shared_sets(read_runs([tmp_path / "one", third]))


def test_a_folder_without_a_run_or_an_evaluation_is_a_sentence(tmp_path: Path, trajectory: Make) -> None:
    first = evaluated(tmp_path / "first", trajectory, HARD_AND_EASY)
    with RunStore.create(tmp_path / "bare"):
        pass
    with pytest.raises(ConfigError, match="nowhere is not a run folder"):
        command([first, tmp_path / "nowhere"], None)
    with pytest.raises(ConfigError, match=r"bare has no evaluation to compare; `ale eval .*bare` makes one"):
        command([first, tmp_path / "bare"], None)
    with pytest.raises(ConfigError, match="takes at least two run folders"):
        command([first], None)
    assert not list(tmp_path.rglob("*.html"))


def test_the_command_prints_a_table_and_the_page_has_a_line_for_each_run(
    tmp_path: Path, trajectory: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_run(tmp_path / "whole", trajectory)
    finish(tmp_path / "whole")
    other = evaluated(tmp_path / "other", trajectory, BETTER)
    command([tmp_path / "whole", other], None)
    *lines, path = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:3] == ["RUN", "STEP", "SUCCESS"]
    assert Path(path).name == "compare.html"
    assert re.fullmatch(r"compare-\d{8}-\d{6}", Path(path).parent.name)
    assert Path(path).parent.parent == tmp_path
    charts = {chart["id"]: chart for chart in page_data(Path(path))["charts"]}
    assert {"eval-success", "rl-reward", "rl-entropy"} <= set(charts)
    assert [series["label"] for series in charts["eval-success"]["series"]] == ["whole", "other"]
    assert len(charts["eval-success"]["series"][0]["points"]) == 3
    assert "low" in charts["eval-success"]["series"][0]["points"][0]


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_a_browser_draws_the_comparison_of_more_runs_than_there_are_colours(tmp_path: Path, trajectory: Make) -> None:
    folders = [evaluated(tmp_path / f"<b>{i}", trajectory, BETTER) for i in range(8)]
    command(folders, tmp_path / "page.html")
    page = dom(tmp_path / "page.html", tmp_path / "profile")
    root = page[page.index("<html") :].split(">")[0]
    assert 'data-ready="1"' in root
    assert "data-error" not in root
    assert "<b>" not in page
    assert page.count('<th scope="row">&lt;b&gt;') >= 8
    figure = re.search(r'<figure class="chart[^"]*" id="chart-eval-success">.*?</figure>', page, re.DOTALL)
    assert figure is not None
    assert "NaN" not in figure[0]
    assert len(re.findall(r"<li>", figure[0])) == 8


def test_a_run_has_its_colour_on_every_chart_also_where_another_run_has_no_line(
    tmp_path: Path, trajectory: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_run(tmp_path / "first", trajectory)
    with RunStore.create(tmp_path / "eval") as store:  # it only evaluates: it has no line on the charts of training
        t = trajectory("e", 1.0, stage="eval", step=0)
        store.add_trajectory(replace(t, task_id="count-1"))
        store.add_metrics("eval", 0, {"success": 1.0, "episodes": 1})
    fill_run(tmp_path / "last", trajectory)
    command([tmp_path / name for name in ("first", "eval", "last")], tmp_path / "page.html")
    charts = {chart["id"]: chart for chart in page_data(tmp_path / "page.html")["charts"]}
    styles = {name: [(line["label"], line["style"]) for line in chart["series"]] for name, chart in charts.items()}
    assert styles["eval-success"] == [("first", 0), ("eval", 1), ("last", 2)]
    assert styles["rl-reward"] == [("first", 0), ("last", 2)]


def test_what_is_before_the_first_step_is_named_on_the_axis(tmp_path: Path, trajectory: Make) -> None:
    for name in ("one", "two"):
        fill_run(tmp_path / name, trajectory)
        finish(tmp_path / name)
    command([tmp_path / "one", tmp_path / "two"], tmp_path / "page.html")
    charts = {chart["id"]: chart for chart in page_data(tmp_path / "page.html")["charts"]}
    assert charts["eval-success"]["ticks"] == [[-1, "before SFT"], [0, "after SFT"]]
    assert "ticks" not in charts["rl-reward"]
