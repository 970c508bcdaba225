"""A browser draws the page, and hostile text stays text in it."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ale.messages import Message, ToolCall
from ale.store.run_store import RunStore
from ale.trajectory import Chunk, Observation, Score, Sequence
from ale_report.page import write_report

from .conftest import EVIL, Make, fill_run, finish

CHROMIUM = shutil.which("chromium")


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
        timeout=400,
        check=True,
    )
    return done.stdout


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
        assert {"success", "families", "time", "sft-grad_norm", "rl-loss", "rl-mismatch_place", "metric"} <= set(drawn)
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
