"""Figures of the page: long series are thinned out, intervals and durations are right."""

from __future__ import annotations

import json
import math

import pytest

from ale_report.charts import MAX_POINTS, metric_tables, mismatch_charts
from ale_report.page import format_duration
from ale_report.page_json import encode
from ale_report.run_facts import wilson


def test_long_stages_are_thinned_out_and_keep_their_last_step() -> None:
    points = [(step, float(step)) for step in range(5 * MAX_POINTS)]
    table = metric_tables({"rl": {"loss": points, "rare": [(5 * MAX_POINTS - 1, math.nan)]}})["rl"]
    assert len(table.steps) == MAX_POINTS
    assert table.steps[-1] == 5 * MAX_POINTS - 1
    assert table.every == 5
    assert json.loads(encode(table))["values"]["rare"][-2:] == [None, "NaN"]


def test_the_wilson_interval_is_honest_at_the_edges() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 128) == pytest.approx((0.0, 0.0291), abs=1e-4)
    assert wilson(64, 128) == pytest.approx((0.4146, 0.5854), abs=1e-4)


def test_where_engine_and_trainer_differ_is_a_bar_for_each_range_over_the_run_and_in_the_newest_step() -> None:
    rl = {
        "mismatch_place/0-127": [(1, 0.25), (2, 0.75)],
        "mismatch_place/1024-2047": [(1, 1.0)],
        "mismatch_place/128-255": [(2, 0.5)],
        "mismatch_chunk/1": [(1, 0.1)],
        "mismatch_chunk/2-3": [(1, 0.2)],
        "mismatch_mean": [(1, 9.0)],
    }
    place, chunk = mismatch_charts({"rl": rl}, "Section")
    assert [(bar.label, bar.values) for bar in place.bars] == [
        ("0 to 127", (0.5, 0.75)),
        ("128 to 255", (0.5, 0.5)),
        ("1024 to 2047", (1.0, None)),
    ]
    assert place.series == ("mean of all steps", "step 2")
    assert [(bar.label, bar.values) for bar in chunk.bars] == [("1", (0.1, 0.1)), ("2 to 3", (0.2, 0.2))]
    assert list(mismatch_charts({"rl": {"loss": [(1, 1.0)]}}, "Section")) == []


def test_durations_are_words() -> None:
    assert [format_duration(s) for s in (4.25, 119.7, 7_500.0)] == ["4.2 s", "2 min 0 s", "2 h 5 min"]
