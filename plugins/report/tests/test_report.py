"""The run report: what the page holds, that hostile text stays text, and that a browser draws it."""

from __future__ import annotations

import html
import json
import math
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ale.errors import ConfigError
from ale.messages import Message, ToolCall
from ale.store.run_store import RunStore, write_summary
from ale.trajectory import Chunk, Failure, Observation, Score, Sequence, Trajectory
from ale_report import trajectories as report_trajectories
from ale_report.charts import MAX_POINTS, metric_tables
from ale_report.command import report
from ale_report.events import MAX_EVENTS_PER_KIND
from ale_report.facts import wilson
from ale_report.page import format_duration, write_report
from ale_report.page_json import encode, script_json, show_controls
from ale_report.trajectories import choose_trajectories, view_of

Make = Callable[..., Trajectory]
EVIL = "</script><script>document.documentElement.dataset.pwned=1</script><!--<script><img src=x onerror=alert(1)>"
CHROMIUM = shutil.which("chromium")


def page_data(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def fill_run(folder: Path, trajectory: Make) -> None:
    """A small run: two evaluations, SFT, three RL steps, one rejected and one failed rollout."""
    with RunStore.create(folder) as store:
        store.add_event("run_started", run_id="demo-1", seed=7)
        for step in (-1, 0, 3):
            passed = {-1: 0, 0: 1, 3: 3}[step]
            for i in range(4):
                store.add_trajectory(trajectory(f"e{step}.{i}", float(i < passed), stage="eval", step=step))
            store.add_metrics("eval", step, {"success": passed / 4, "episodes": 4, "success/count": passed / 4})
        for step in range(3):
            store.add_metrics("sft", step, {"loss": 2.0 - step, "entropy": 1.0, "grad_norm": math.inf})
        for step in (1, 2, 3):
            for i in range(5):
                store.add_trajectory(trajectory(f"r{step}.{i}", float(i % 2), step=step))
            metrics = {
                "success": 0.4,
                "reward": 0.4,
                "loss": 0.1,
                "entropy": 0.5,
                "chunks": 2.0,
                "illegal_calls": 0.1,
                "rollout_s": 2.0,
                "train_s": 1.0,
                "sampled_tokens": 20.0,
                "odd": 3.0,
            }
            store.add_metrics("rl", step, metrics)
        store.add_trajectory(trajectory("no", step=2, rejected="illegal calls"))
        fault = trajectory("fault", step=2, failure=Failure("sandbox", EVIL, True), rejected="sandbox failure")
        store.add_trajectory(replace(fault, reward=None))


def finish(folder: Path, status: str = "completed", error: str | None = None) -> None:
    heldout = {
        label: {"success": s, "episodes": 4, "step": step}
        for label, s, step in (("before_sft", 0.0, -1), ("after_sft", 0.25, 0), ("after_rl", 0.75, 3))
    }
    write_summary(
        folder,
        {
            "run_id": "demo-1",
            "status": status,
            "error": error,
            "seed": 7,
            "heldout": heldout,
            "seconds": {"rollout": 6.0, "training": 3.0, "total": 3725.0},
            "rollouts": 29,
            "sampled_tokens": 116,
            "tokens_per_s": 12.5,
            "peak_memory_mib": 512.0,
            "final_policy_version": 4,
            "failures": {"sandbox": 1},
        },
    )


def dom(path: Path, profile: Path, fragment: str = "", width: int = 1280) -> str:
    """The page as Chromium has drawn it."""
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            f"--user-data-dir={profile}",
            f"--window-size={width},900",
            "--virtual-time-budget=3000",
            "--dump-dom",
            path.as_uri() + fragment,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


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
    assert {"success", "families", "time", "sft-loss", "rl-loss", "rl-reward", "rl-rollout_s"} <= set(charts)
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


def test_a_turn_carries_its_chunk_and_its_observation(trajectory: Make) -> None:
    view = view_of(trajectory())
    (line,) = view.lines
    assert [turn.role for turn in line.turns] == ["system", "user", "assistant", "tool", "assistant"]
    call, answer, last = line.turns[2:]
    assert call.calls[0].arguments == (("command", "ls"),)
    assert call.chunk is not None
    assert (call.chunk.tokens, call.chunk.mean, call.chunk.error) == (2, -0.3, "execution_failed")
    assert (answer.tool, answer.exit_code, answer.seconds) == ("shell", 0, 0.01)
    assert last.chunk is not None
    assert (last.chunk.versions, last.chunk.finish) == ((3, 4), "length")


def test_an_answer_that_the_model_never_saw_is_shown_and_marked(trajectory: Make) -> None:
    seen = trajectory()
    unseen = Observation(1, "finish", {}, "done", None, 0.0)
    view = view_of(replace(seen, observations=(*seen.observations, unseen)))
    assert (view.lines[0].turns[-1].text, view.lines[0].turns[-1].unseen) == ("done", True)


def test_a_branch_shows_only_what_is_new(trajectory: Make) -> None:
    t = trajectory()
    (first,) = t.sequences
    branch = Sequence((1, 2, 3), (*first.messages[:4], Message("assistant", "another way")))
    chunk = Chunk(2, 1, 2, 3, (-0.1,), (3,), "stop", turn=4)
    line = view_of(replace(t, sequences=(first, branch), chunks=(*t.chunks, chunk))).lines[1]
    assert (line.shared, line.shared_with) == (4, 0)
    assert [turn.text for turn in line.turns] == ["another way"]
    assert line.turns[0].chunk is not None
    assert line.turns[0].chunk.index == 2


@pytest.mark.parametrize("arguments", ["not json", "[1]", "[" * 100_000])
def test_arguments_that_are_no_object_are_shown_as_they_are(trajectory: Make, arguments: str) -> None:
    message = Message("assistant", "", (ToolCall("c", "shell", arguments),))
    t = trajectory(sequences=(Sequence((1,), (message,)),), chunks=())
    call = view_of(t).lines[0].turns[0].calls[0]
    assert call.raw.startswith(arguments[:100])
    assert call.arguments == ()


def test_long_texts_lose_their_middle_and_controls_are_shown(trajectory: Make) -> None:
    t = replace(trajectory(), reward=Score(1.0, True, "x" * 50_000 + "\x1b[31m\u202e"))
    detail = view_of(t).detail
    assert len(detail) < 9_000
    assert "42,006 characters left out" in detail
    assert detail.endswith("␛[31m[U+202E]")
    assert show_controls("a\tb\n\x00") == "a\tb\n␀"


def test_the_choice_keeps_the_last_evaluation_faults_and_a_spread_sample(tmp_path: Path, trajectory: Make) -> None:
    with RunStore.create(tmp_path) as store:
        for step in range(1, 31):
            for i in range(20):
                store.add_trajectory(trajectory(f"r{step}.{i}", float(i == 19), step=step))
        for i in range(60):
            store.add_trajectory(trajectory(f"no{i}", step=1, rejected="no reward"))
        for step in (0, 30):
            for i in range(100):
                store.add_trajectory(trajectory(f"e{step}.{i}", stage="eval", step=step))
    path = write_report(tmp_path)
    shown = page_data(path)["trajectories"]
    assert sum(t["stage"] == "eval" and t["step"] == 30 for t in shown) == 100
    assert sum(t["outcome"] == "rejected" for t in shown) == report_trajectories.MAX_FAULTS
    rl = [t for t in shown if t["stage"] == "rl"]
    assert {t["step"] for t in rl} == set(range(1, 31))
    assert {(t["step"], t["outcome"]) for t in rl} >= {(step, "passed") for step in range(1, 31)}
    assert len(shown) <= report_trajectories.MAX_SAMPLE + 100
    assert f"{len(shown)} of 860 rollouts" in path.read_text()


def test_the_page_stays_small_with_huge_conversations(
    tmp_path: Path, trajectory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_trajectories, "SAMPLE_BYTES", 100_000)
    with RunStore.create(tmp_path) as store:
        for i in range(60):
            messages = (Message("user", f"{i}" + "y" * 9_000), Message("assistant", "é" * 3_000))
            store.add_trajectory(trajectory(f"t{i}", step=i, sequences=(Sequence((1,), messages),), chunks=()))
    with RunStore.open(tmp_path) as store:
        shown = choose_trajectories(store)
    assert 2 <= len(shown) < 10
    assert len(encode(shown)) < 110_000


def test_long_stages_are_thinned_out_and_keep_their_last_step() -> None:
    points = [(step, float(step)) for step in range(5 * MAX_POINTS)]
    table = metric_tables({"rl": {"loss": points, "rare": [(5 * MAX_POINTS - 1, math.nan)]}})["rl"]
    assert len(table.steps) == MAX_POINTS
    assert table.steps[-1] == 5 * MAX_POINTS - 1
    assert table.every == 5
    assert json.loads(encode(table))["values"]["rare"][-2:] == [None, "NaN"]


def test_json_in_the_page_cannot_end_its_element() -> None:
    text = script_json({"a": EVIL + "\u2028\ud800&amp;", "b": [math.nan, -math.inf, 1 / 3]})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"a": EVIL + "\u2028\ud800&amp;", "b": ["NaN", "-Infinity", 0.333333]}


def test_the_wilson_interval_is_honest_at_the_edges() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 128) == pytest.approx((0.0, 0.0291), abs=1e-4)
    assert wilson(64, 128) == pytest.approx((0.4146, 0.5854), abs=1e-4)


def test_durations_are_words() -> None:
    assert [format_duration(s) for s in (4.25, 119.7, 7_500.0)] == ["4.2 s", "2 min 0 s", "2 h 5 min"]


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
class TestInABrowser:
    def test_charts_and_the_linked_rollout_are_drawn(self, tmp_path: Path, trajectory: Make) -> None:
        fill_run(tmp_path, trajectory)
        finish(tmp_path)
        page = dom(write_report(tmp_path), tmp_path / "profile", "#t=r2.3")
        root = page[page.index("<html") :].split(">")[0]
        assert 'data-ready="1"' in root
        assert "data-error" not in root
        drawn = re.findall(r'<figure class="chart[^"]*" id="chart-([^"]+)">.*?</figure>', page, re.DOTALL)
        assert {"success", "families", "time", "sft-grad_norm", "rl-loss", "metric"} <= set(drawn)
        assert page.count("<svg") > len(drawn)
        assert "NaN" not in "".join(re.findall(r"<svg width.*?</svg>", page, re.DOTALL))
        assert 'data-id="r2.3" aria-current="true"' in page
        assert re.search(r'<article[^>]*data-id="r2.3"', page)
        assert "29 of 29 in this page" in page
        assert "<summary><code>run_started</code> 1</summary>" in page

    def test_hostile_text_stays_text(self, tmp_path: Path, trajectory: Make) -> None:
        t = replace(trajectory("evil"), task_id=EVIL, tags=(EVIL,), reward=Score(1.0, True, EVIL))
        call = ToolCall("c", EVIL, json.dumps({EVIL: EVIL}))
        messages = (Message("user", EVIL), Message("assistant", EVIL, (call,)), Message("tool", EVIL))
        seen = Observation(0, EVIL, {}, EVIL, 1, 0.1)
        sequence = Sequence((1, 2), messages)
        chunk = Chunk(0, 0, 0, 2, (-math.inf, math.nan), (1, 1), "abort", turn=1)
        with RunStore.create(tmp_path) as store:
            store.add_event("run_started", run_id=EVIL, seed=1)
            store.add_event(EVIL, **{EVIL: EVIL})
            store.add_trajectory(replace(t, sequences=(sequence,), chunks=(chunk,), observations=(seen,)))
            store.add_metrics("eval", 0, {"success": 1.0, "episodes": 1, f"success/{EVIL}": 1.0})
        path = write_report(tmp_path)
        assert path.read_text().count("<script") == 3
        page = dom(path, tmp_path / "profile", "#t=evil", width=390)
        root = page[page.index("<html") :].split(">")[0]
        assert 'data-ready="1"' in root
        assert "data-pwned" not in root
        assert "data-error" not in root
        assert "<img" not in page
        assert page.count("<script") == 3
        assert page.count("&lt;img src=x onerror=alert(1)&gt;") > 10

    def test_an_empty_run_and_an_unknown_link_make_no_error(self, tmp_path: Path, trajectory: Make) -> None:
        with RunStore.create(tmp_path / "empty"):
            pass
        page = dom(write_report(tmp_path / "empty"), tmp_path / "p1")
        assert "This run has no metrics yet." in page
        assert "This run has no rollouts yet." in page
        assert "This run has no events yet." in page
        assert "data-error" not in page[page.index("<html") :].split(">")[0]
        with RunStore.create(tmp_path / "dump") as store:
            store.add_trajectory(trajectory("a", chunks=(), sequences=()))
        page = dom(write_report(tmp_path / "dump"), tmp_path / "p2", "#t=%E0%A4%A")
        assert "is not in this page" in page
        assert "data-error" not in page[page.index("<html") :].split(">")[0]
