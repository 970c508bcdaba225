"""The timeline has a row for each replica of the engine, and says on which nodes and devices a run's parts were."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from ale.store.run_store import DB_NAME, RunStore
from ale_report.actor_places import Actor, place_of, read_actors
from ale_report.page import write_report
from ale_report.spans import replica_states
from ale_report.timeline import Row, Timeline, read_timeline
from ale_report.trace import write_trace

from .conftest import EVIL, page_data
from .test_browser import CHROMIUM, dom

STARTED, WRITTEN = 500.0, 700.0
"""When the run began, and when it wrote its places."""
TRAINER = [["wait_data", 1000, 1006], ["update", 1006, 1009], ["publish", 1009, 1010]]
ENGINE = [["busy", 1000, 1006], ["starved", 1006, 1009], ["loading", 1009, 1010]]


def add_step(store: RunStore, step: int = 1, later: float = 0.0, **more: str) -> None:
    trainer, engine = (
        [[state, began + later, ended + later] for state, began, ended in spans] for spans in (TRAINER, ENGINE)
    )
    store.add_event("roles", step=step, version=step, advice="Both are busy.", trainer=trainer, engine=engine, **more)


def add_states(store: RunStore, **engines: list[list[Any]]) -> None:
    """The event of a pool; a name is such as `torch_0__a`, of the replica `torch 0` at the place `a`."""
    rows = []
    for key, spans in engines.items():
        name, _, place = key.partition("__")
        rows.append({"name": name.replace("_", " "), "place": place and f"{place} · cpu", "spans": spans})
    store.add_event("engine_states", engines=rows)


def add_workers(store: RunStore, *names: str) -> None:
    """The event of a cluster, with workers that had no episode at first."""
    spans = [["idle", 990, 1001], ["busy", 1001, 1008]]
    store.add_event("worker_states", workers=[{"name": name, "place": "a · cpu", "spans": spans} for name in names])


def write_roles(folder: Path, *roles: tuple[str, str, str, str]) -> None:
    """What a cluster writes."""
    path = folder / "cluster" / "roles.json"
    path.parent.mkdir(exist_ok=True)
    rows = [
        {"role": role, "name": name, "node": node, "pid": 1, "devices": devices, "state": "", "version": ""}
        for role, name, node, devices in roles
    ]
    path.write_text(json.dumps({"state": "ended", "nodes": "2 nodes", "roles": rows}))
    os.utime(path, (WRITTEN, WRITTEN))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run on two nodes: an engine slept, the other died and came back on the first one's node."""
    with RunStore.create(tmp_path) as store:
        store.add_event("run_started", run_id="r", seed=1)
        add_states(
            store,
            torch_0__a=[["serving", 900, 1002], ["leaving", 1002, 1003], ["asleep", 1003, 1005]],
            torch_1__b=[["serving", 900, 1004], ["lost", 1004, 1005]],
        )
        add_states(
            store,
            torch_0__a=[["asleep", 1005, 1008], ["serving", 1008, 1020]],
            torch_1__b=[["lost", 1005, 1006]],
            torch_1__a=[["lost", 1006, 1007], ["serving", 1007, 1009], ["loading", 1009, 1010]],
        )
        add_step(store)
    with sqlite3.connect(tmp_path / DB_NAME) as db:
        db.execute("UPDATE events SET time = ?", (STARTED,))
    write_roles(
        tmp_path,
        ("engine", "torch 0", "a", "cpu"),
        ("trainer", "rank 0", "a", "1 GPU"),
        ("trainer", "rank 1", "a", "1 GPU"),
        ("trainer", "rank 2", "b", "1 GPU"),
        ("rollout", "worker 0", "b", "cpu"),
    )
    return tmp_path


def timeline_of(folder: Path) -> Timeline:
    with RunStore.open(folder) as store:
        found = read_timeline(store)
    assert found is not None
    return found


def replicas(found: Timeline) -> list[Row]:
    return [row for row in found.rows if row.kind == "replica"]


def test_each_replica_is_a_row_with_its_place_and_its_states_in_the_time_that_is_shown(run: Path) -> None:
    found = timeline_of(run)
    assert [(row.kind, row.name, row.place) for row in found.rows] == [
        ("role", "trainer", "a ×2, b · 1 GPU"),
        ("role", "engine", ""),
        ("replica", "torch 0", "a · cpu"),
        ("replica", "torch 1", "b · cpu"),
        ("replica", "torch 1", "a · cpu"),
    ]
    slept, died, came_back = replicas(found)
    assert slept.spans == (("serving", 0, 2), ("leaving", 2, 3), ("asleep", 3, 8), ("serving", 8, 10))
    assert died.spans == (("serving", 0, 4), ("lost", 4, 6))
    assert came_back.spans == (("lost", 6, 7), ("serving", 7, 9), ("loading", 9, 10))


def test_replicas_without_a_cluster_are_rows_without_a_node(tmp_path: Path) -> None:
    with RunStore.create(tmp_path) as store:
        add_step(store)
        store.add_event(
            "engine_states",
            engines=[
                {"name": f"vllm {number}", "place": f"cuda:{number}", "spans": [["serving", 990, 1010]]}
                for number in range(2)
            ],
        )
    found = timeline_of(tmp_path)
    assert [(row.name, row.place) for row in replicas(found)] == [("vllm 0", "cuda:0"), ("vllm 1", "cuda:1")]
    assert found.rows[0].place == ""
    assert found.actors == ()


def test_without_a_cluster_the_trainer_says_where_it_was_in_the_newest_step(tmp_path: Path) -> None:
    with RunStore.create(tmp_path) as store:
        add_step(store, 1, place="cpu")
        add_step(store, 2, later=10.0, place="cuda:1")
    found = timeline_of(tmp_path)
    assert [(row.name, row.place) for row in found.rows] == [("trainer", "cuda:1"), ("engine", "")]


def test_on_a_cluster_the_trainers_place_is_that_of_its_ranks(run: Path) -> None:
    with RunStore.create(run) as store:
        add_step(store, 2, later=10.0, place="cuda ×3")
    assert timeline_of(run).rows[0].place == "a ×2, b · 1 GPU"


@pytest.mark.parametrize("names", [("worker 0", "worker 1"), ("worker 0",)])
def test_each_of_several_rollout_workers_is_a_row_and_one_alone_is_not(tmp_path: Path, names: tuple[str, ...]) -> None:
    with RunStore.create(tmp_path) as store:
        add_step(store)
        add_workers(store, *names)
    rows = replicas(timeline_of(tmp_path))
    assert [(row.name, row.place) for row in rows] == [(name, "a · cpu") for name in names if len(names) > 1]
    assert {row.spans for row in rows} <= {(("idle", 0, 1), ("busy", 1, 8))}


def test_a_replica_that_was_there_only_before_or_after_has_no_row(tmp_path: Path) -> None:
    with RunStore.create(tmp_path) as store:
        add_step(store)
        add_states(store, early=[["serving", 900, 1000]], late=[["serving", 1010, 1020]])
    assert replicas(timeline_of(tmp_path)) == []


def test_a_run_of_a_version_without_these_events_has_the_rows_that_it_had(tmp_path: Path) -> None:
    with RunStore.create(tmp_path) as store:
        add_step(store)
    assert [(row.name, row.place) for row in timeline_of(tmp_path).rows] == [("trainer", ""), ("engine", "")]
    names = [event["args"].get("name") for event in json.loads(write_trace(tmp_path).read_text())["traceEvents"]]
    assert {name for name in names if name} == {"trainer", "engine", "rollouts"}


def test_the_page_has_the_rows_and_no_table_of_the_events(run: Path) -> None:
    with RunStore.create(run) as store:
        add_workers(store, "worker 0", "worker 1")
    data = page_data(write_report(run))
    names = ["trainer", "engine", "torch 0", "torch 1", "torch 1", "worker 0", "worker 1"]
    assert [row["name"] for row in data["timeline"]["rows"]] == names
    assert {"role": "trainer", "name": "rank 2", "node": "b", "devices": "1 GPU"} in data["timeline"]["actors"]
    assert {table["kind"] for table in data["events"]} == {"run_started"}


def test_the_trace_has_a_named_thread_for_each_replica(run: Path) -> None:
    events = json.loads(write_trace(run).read_text())["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {
        (1, 0): "ranks: a ×2, b · 1 GPU",
        (2, 1): "torch 0 · a · cpu",
        (2, 2): "torch 1 · b · cpu",
        (2, 3): "torch 1 · a · cpu",
    }
    slices = [(e["tid"], e["name"], e["ts"] / 1e6, e["dur"] / 1e6) for e in events if e["ph"] == "X" and e["pid"] == 2]
    assert [one for one in slices if one[0] == 2] == [(2, "serving", 0, 4), (2, "lost", 4, 2)]
    assert (1, "serving", 8, 12) in slices, "the trace has the whole run"
    assert {name for tid, name, _, _ in slices if tid == 0} == {"busy", "starved", "loading"}


def test_a_trace_of_a_run_without_reinforcement_learning_has_no_slices(tmp_path: Path) -> None:
    with RunStore.create(tmp_path) as store:
        add_states(store, torch_0__a=[["serving", 900, 1000]])
    events = json.loads(write_trace(tmp_path).read_text())["traceEvents"]
    assert [event for event in events if event["ph"] == "X"] == []


@pytest.mark.parametrize(("event", "known"), [("run_started", False), ("run_resumed", False), ("note", True)])
def test_places_of_an_earlier_part_of_the_run_are_not_those_of_the_newest(run: Path, event: str, known: bool) -> None:
    with RunStore.create(run) as store:
        store.add_event(event)
    assert bool(timeline_of(run).actors) is known
    assert bool(timeline_of(run).rows[0].place) is known


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"roles": [{"role": "trainer"}]}', '{"roles": [1]}', "null"])
def test_a_file_of_places_that_cannot_be_read_is_none(run: Path, text: str) -> None:
    (run / "cluster" / "roles.json").write_text(text)
    with RunStore.open(run) as store:
        assert read_actors(store) == []


def test_the_place_of_several_actors_counts_them_by_node() -> None:
    ranks = [Actor("trainer", f"rank {rank}", node, "2 GPUs") for rank, node in enumerate("aab")]
    assert place_of(ranks) == "a ×2, b · 2 GPUs"
    assert place_of(ranks[:1]) == "a · 2 GPUs"
    assert place_of([]) == ""


def test_text_that_an_engine_reports_is_shown_and_not_obeyed(tmp_path: Path) -> None:
    with RunStore.create(tmp_path) as store:
        add_step(store)
        store.add_event("engine_states", engines=[{"name": "a\x1b", "place": EVIL, "spans": [["serving", 1, 1005]]}])
        (found,) = replica_states(store)
    assert found.name == "a␛"
    assert write_report(tmp_path).read_text().count("<script") == 3


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
class TestInABrowser:
    def drawn(self, folder: Path) -> str:
        page = dom(write_report(folder), folder / "profile")
        assert "data-error" not in page[page.index("<html") :].split(">")[0]
        return page[page.index('id="timeline"') :].split("</section>")[0]

    def test_each_row_is_drawn_with_its_name_its_place_and_its_states(self, run: Path) -> None:
        section = self.drawn(run)
        labels = re.findall(r"<text[^>]*text-anchor=\"end\"[^>]*>[^<]*<title>([^<]*)</title>", section)
        assert labels == [
            "trainer · a ×2, b · 1 GPU",
            "engine",
            "torch 0 · a · cpu",
            "torch 1 · b · cpu",
            "torch 1 · a · cpu",
        ]
        for kind in ("serving", "lost", "idle", "s4", "s5"):
            assert f'class="state {kind}"' in section.partition("<details")[0], kind
        assert "Nodes and devices" in section
        assert "NaN" not in section

    def test_without_replicas_it_has_no_legend_of_theirs(self, tmp_path: Path) -> None:
        with RunStore.create(tmp_path) as store:
            add_step(store)
        section = self.drawn(tmp_path)
        assert "serving" not in section
        assert "Nodes and devices" not in section
