"""Spans of rollouts and engine, and the Chrome trace that is made of them."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ale.store.run_store import RunStore
from ale.trajectory import Chunk, Trajectory
from ale_report.page import write_report
from ale_report.spans import lanes, merge, rollout_spans
from ale_report.trace import write_trace

seconds = st.floats(0, 100).map(lambda value: round(value, 3))


def chunk(called_at: float, took: float) -> Chunk:
    return Chunk(0, 0, 0, 1, (-0.5,), (0,), "stop", called_at=called_at, seconds=took)


def rollout(name: str = "a", began: float = 1000.0, **changes: Any) -> Trajectory:
    t = Trajectory(name, "t0", "train", "rl", 1, "g", 1, 0, (), (), started_at=began, seconds=10.0)
    timings = (("queue", 2.0), ("prepare", 0.5), ("start", 0.5), ("act", 6.0), ("score", 2.0), ("stop", 1.0))
    return replace(t, timings=timings, chunks=(chunk(began + 1, 2), chunk(began + 5, 1)), **changes)


def test_a_rollout_queues_starts_samples_uses_tools_is_scored_and_stops() -> None:
    spans = [(state, began - 1000, ended - 1000) for state, began, ended in rollout_spans(rollout())]
    assert spans == [
        ("queue", -2, 0),
        ("start", 0, 1),
        ("model", 1, 3),
        ("tool", 3, 5),
        ("model", 5, 6),
        ("tool", 6, 7),
        ("score", 7, 9),
        ("stop", 9, 10),
    ]


def test_a_rollout_whose_sandbox_did_not_start_was_starting_to_its_end() -> None:
    failed = replace(rollout(), timings=(("queue", 2.0),), chunks=())
    assert [span[0] for span in rollout_spans(failed)] == ["queue", "start"]


@given(
    st.dictionaries(st.sampled_from(["queue", "build", "prepare", "state", "start", "act", "score", "stop"]), seconds),
    seconds,
    st.lists(st.tuples(seconds, seconds), max_size=8),
)
def test_the_states_of_a_rollout_fill_its_time_without_gap_or_overlap(
    timings: dict[str, float], took: float, calls: list[tuple[float, float]]
) -> None:
    chunks = tuple(chunk(1000 + at, lasting) for at, lasting in calls)
    t = replace(rollout(), timings=tuple(timings.items()), seconds=took, chunks=chunks)
    spans = rollout_spans(t)
    assert all(a[2] == b[1] for a, b in pairwise(spans))
    if spans:
        assert (spans[0][1], spans[-1][2]) == (pytest.approx(1000 - timings.get("queue", 0)), 1000 + took)


def test_rollouts_of_a_lane_do_not_overlap_and_lanes_are_used_again() -> None:
    spans = [[("model", a, b)] for a, b in ((0.0, 4.0), (1.0, 2.0), (2.0, 3.0), (4.0, 5.0))]
    assert lanes(spans) == [0, 1, 1, 0]
    assert merge([(3, 4), (0, 2), (1, 3)]) == [(0, 4)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with RunStore.create(tmp_path / "run") as store:
        store.set_meta({"run_id": "r"})
        for i in range(3):
            store.add_trajectory(rollout(f"a{i}", 1000.0 + i))
        trainer = [["wait_data", 1000, 1012], ["logprobs", 1012, 1013], ["update", 1013, 1015], ["publish", 1015, 1016]]
        engine = [["starved", 1000, 1001], ["busy", 1001, 1012], ["starved", 1012, 1015], ["loading", 1015, 1016]]
        store.add_event("roles", step=1, version=5, advice="<b>They</b> take turns.", trainer=trainer, engine=engine)
        store.add_metrics("rl", 1, {"success": 1.0, "bubble/trainer": 0.75}, [("a0", 0, 5), ("a1", 1, 5)])
    return tmp_path / "run"


def test_the_trace_has_slices_arrows_and_counters_that_fit_together(run: Path) -> None:
    events = json.loads(write_trace(run).read_text())["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    assert {e["name"] for e in slices if e["pid"] == 1} == {"wait_data", "logprobs", "update", "publish"}
    assert {e["name"] for e in slices if e["pid"] == 2} == {"busy", "starved", "loading"}
    assert min(e["ts"] for e in slices) == 0
    assert all(e["dur"] > 0 for e in slices)
    names = {(e["pid"], e["args"]["name"]) for e in events if e["name"] == "process_name"}
    assert names == {(1, "trainer"), (2, "engine"), (3, "rollouts")}
    by_thread: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for e in slices:
        by_thread.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    for spans in by_thread.values():
        spans.sort()
        assert all(a[1] <= b[0] + 0.2 for a, b in pairwise(spans)), "slices of a thread overlap"
    begun, ended = ({e["id"] for e in events if e["ph"] == phase} for phase in "sf")
    assert begun == ended == {"a0", "a1"}
    counters = [e for e in events if e["ph"] == "C"]
    assert max(e["args"]["number"] for e in counters) == 3
    assert counters[-1]["args"]["number"] == 0


def test_the_report_has_the_timeline_and_says_what_to_change(run: Path) -> None:
    page = write_report(run).read_text()
    data = json.loads(page.split('<script type="application/json" id="data">')[1].split("</script>")[0])
    found = data["timeline"]
    assert [row.get("name") for row in found["rows"]] == ["trainer", "engine", "rollouts", None, None]
    assert found["seconds"] == 16
    assert found["steps"] == [[1, 16]]
    assert found["advice"] == [[1, "<b>They</b> take turns."]]
    assert sum(ended - began for _, began, ended in found["rows"][1]["spans"]) == pytest.approx(16)
    assert "roles" not in {table["kind"] for table in data["events"]}


def test_a_run_without_reinforcement_learning_has_neither(tmp_path: Path) -> None:
    RunStore.create(tmp_path / "run").close()
    assert json.loads(write_trace(tmp_path / "run").read_text())["traceEvents"]
    assert '"timeline":{' not in write_report(tmp_path / "run").read_text().replace(" ", "")
