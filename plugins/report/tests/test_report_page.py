"""The page about a run tells how it went, whatever became of the run, and text of the run cannot become code."""

from __future__ import annotations

import html
import json
import math
import os
import re
from pathlib import Path

import pytest

from ale.errors import ConfigError
from ale.store.run_store import RunStore
from ale_report.commands import report
from ale_report.events import MAX_EVENTS_PER_KIND, event_tables, newest_events
from ale_report.page import write_report
from ale_report.page_json import script_json

from .conftest import EVIL, Make, fill_run, finish, page_data


def test_a_completed_run_is_told_in_figures_charts_and_rollouts(tmp_path: Path, trajectory: Make) -> None:
    fill_run(tmp_path, trajectory)
    finish(tmp_path)
    path = write_report(tmp_path)
    assert path == tmp_path / "report.html"
    text = path.read_text()
    for part in ("demo-1", "completed", "seed 7", "took 1 h 2 min", "after RL", "75.0", "3 of 4 episodes", "512"):
        assert part in text
    data = page_data(path)
    charts = {chart["id"]: chart for chart in data["charts"]}
    assert {
        "success",
        "families",
        "time",
        "sft-loss",
        "rl-loss",
        "rl-reward",
        "rl-rollout_s",
        "rl-mismatch_mean",
    } <= set(charts)
    heldout = charts["success"]["series"][0]["points"]
    assert [p["label"] for p in heldout] == ["before SFT", "after SFT", "after RL"]
    assert heldout[2]["low"] < 0.75 < heldout[2]["high"]
    assert charts["families"]["bars"] == [{"label": "count", "values": [0.25, 0.75]}]
    assert data["metrics"]["rl"]["values"]["odd"] == [3, 3, 3]
    assert data["metrics"]["sft"]["values"]["grad_norm"] == ["Infinity"] * 3
    assert data["counts"] == {"eval": 12, "rl": 17}
    assert "29 of 29 rollouts" in text


def test_the_page_loads_nothing_and_its_policy_forbids_it(tmp_path: Path, trajectory: Make) -> None:
    fill_run(tmp_path, trajectory)
    text = html.unescape(write_report(tmp_path).read_text())
    assert "default-src 'none'" in text
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:|//)", text)
    assert "@import" not in text
    assert "url(" not in text


@pytest.mark.parametrize(("status", "error"), [("failed", f"It broke. {EVIL}"), ("interrupted", "By a person.")])
def test_a_run_that_did_not_complete_says_why(tmp_path: Path, trajectory: Make, status: str, error: str) -> None:
    fill_run(tmp_path, trajectory)
    finish(tmp_path, status, error)
    text = write_report(tmp_path).read_text()
    assert f'<span class="status {status}">{status}</span>' in text
    assert error.split()[0] in text
    assert EVIL not in text


def test_a_run_that_is_being_written_is_reported(tmp_path: Path, trajectory: Make) -> None:
    fill_run(tmp_path, trajectory)
    with RunStore.create(tmp_path) as store:
        store.add_trajectory(trajectory("new", step=4))
        path = write_report(tmp_path, tmp_path / "elsewhere" / "page.html")
        store.add_trajectory(trajectory("later", step=4))
    text = path.read_text()
    assert "the run is still going, or was killed" in text
    assert "seed 7" in text
    assert "after SFT" in text
    assert "at step 3" in text
    assert not list(path.parent.glob(".*tmp"))


def test_a_summary_older_than_the_last_start_is_not_used(tmp_path: Path, trajectory: Make) -> None:
    fill_run(tmp_path, trajectory)
    finish(tmp_path)
    os.utime(tmp_path / "summary.json", (1, 1))
    assert "running" in write_report(tmp_path).read_text().split("</header>")[0]
    (tmp_path / "summary.json").touch()
    assert "completed" in write_report(tmp_path).read_text().split("</header>")[0]
    (tmp_path / "summary.json").write_text("{")
    assert "running" in write_report(tmp_path).read_text().split("</header>")[0]


def test_a_run_with_rollouts_only_and_an_empty_run_are_reported(tmp_path: Path, trajectory: Make) -> None:
    with RunStore.create(tmp_path / "empty"):
        pass
    data = page_data(write_report(tmp_path / "empty"))
    assert data == {"charts": [], "metrics": {}, "events": [], "trajectories": [], "counts": {}, "rounds": {}}
    with RunStore.create(tmp_path / "dump") as store:
        store.add_trajectory(trajectory("a"))
    assert [t["id"] for t in page_data(write_report(tmp_path / "dump"))["trajectories"]] == ["a"]


def test_what_happened_is_told_by_kind_with_a_column_for_each_field(tmp_path: Path) -> None:
    with RunStore.create(tmp_path) as store:
        store.add_event("run_started", run_id="demo-1", seed=7)
        store.add_event("crucial_fork", task="t-1", step=8, chunk=4, before=0.875, after=0.25)
        store.add_event("crucial_fork", task="t-1", step=20240109, chunk=3, before=None, on_path=[True, 1])
        for i in range(MAX_EVENTS_PER_KIND + 5):
            store.add_event("network_refused", host=f"h{i}\x1b" + "x" * 10_000)
    path = write_report(tmp_path)
    _, forks, refused = page_data(path)["events"]
    assert (forks["kind"], forks["count"]) == ("crucial_fork", 2)
    assert forks["heads"] == ["time (UTC)", "step", "task", "chunk", "before", "after", "on path"]
    assert [row[1:] for row in forks["rows"]] == [
        ["8", "t-1", "4", 0.875, 0.25, None],
        ["20240109", "t-1", "3", None, None, "[true, 1]"],
    ], "whole numbers as they stand"
    assert (refused["count"], len(refused["rows"])) == (MAX_EVENTS_PER_KIND + 5, MAX_EVENTS_PER_KIND)
    assert refused["rows"][-1][1].startswith(f"h{MAX_EVENTS_PER_KIND + 4}\u241bxxx")
    assert all(len(row[1]) < 600 for row in refused["rows"])
    assert (
        f"{MAX_EVENTS_PER_KIND + 8} events, by kind; of each kind the newest {MAX_EVENTS_PER_KIND} are in this page"
        in path.read_text()
    )


def test_another_folder_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not a run folder: it holds no run\.db"):
        report(tmp_path, None)


def test_the_command_prints_the_path_last(tmp_path: Path, trajectory: Make, capsys: pytest.CaptureFixture[str]) -> None:
    fill_run(tmp_path, trajectory)
    report(tmp_path, tmp_path / "page.html")
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "page.html")


def test_json_in_the_page_cannot_end_its_element() -> None:
    text = script_json({"a": EVIL + "\u2028\ud800&amp;", "b": [math.nan, -math.inf, 1 / 3]})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"a": EVIL + "\u2028\ud800&amp;", "b": ["NaN", "-Infinity", 0.333333]}


def test_the_newest_events_of_each_kind_are_found_among_many(tmp_path: Path) -> None:
    with RunStore.create(tmp_path) as store:
        for i in range(5):
            store.add_event("refused", n=i)
            if i == 1:
                store.add_event("fork", n=i)
        found = [(kind, data["n"]) for _, kind, data in newest_events(store, 2)]
        assert found == [("fork", 1), ("refused", 3), ("refused", 4)]
        assert [(table.kind, table.count) for table in event_tables(store)] == [("refused", 5), ("fork", 1)]


def test_the_head_says_why_rollouts_were_lost_and_where_the_model_is(tmp_path: Path, trajectory: Make) -> None:
    run = tmp_path / "run"
    fill_run(run, trajectory)
    page = write_report(run).read_text()
    assert "from_pretrained" not in page
    (run / "model/final").mkdir(parents=True)
    finish(run)
    page = write_report(run).read_text()
    assert f"The model is in <code>{run}/model/final</code>: <code>ale serve {run}</code>" in page
    lost = page[page.index('<ul class="lost"') : page.index("</ul>", page.index('<ul class="lost"'))]
    assert "<strong>1 × illegal calls</strong>" in lost
    assert "<strong>1 × sandbox failure</strong>, such as: &lt;/script&gt;" in lost
    assert '<a href="#t=fault">See it</a>' in lost


def test_a_page_goes_into_a_folder_that_exists_and_a_bad_place_is_a_sentence(tmp_path: Path, trajectory: Make) -> None:
    fill_run(tmp_path / "run", trajectory)
    (tmp_path / "pages").mkdir()
    assert write_report(tmp_path / "run", tmp_path / "pages") == tmp_path / "pages/report.html"
    with pytest.raises(ConfigError, match=r"The folder of the page .* cannot be made: Not a directory"):
        write_report(tmp_path / "run", tmp_path / "pages/report.html/new.html")
    assert sorted(path.name for path in tmp_path.rglob("*.html")) == ["report.html"]
