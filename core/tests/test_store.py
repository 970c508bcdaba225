"""The run folder: what is written comes back, and survives a kill."""

from __future__ import annotations

import asyncio
import math
import os
import re
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import support

from ale.errors import ConfigError
from ale.store.output_files import write_whole
from ale.store.run_store import REJECT, RunStore
from ale.trajectory import Failure, Trajectory

Make = Callable[..., Trajectory]


def test_a_trajectory_comes_back_equal(tmp_path: Path, trajectory: Make) -> None:
    fault = trajectory("c", reward=0.0, failure=Failure("sandbox", "it died", True), rejected="sandbox failure")
    kept = [trajectory("a"), trajectory("b", reward=0.0), replace(fault, reward=None)]
    with RunStore.create(tmp_path) as store:
        for t in kept:
            store.add_trajectory(t)
    with RunStore.open(tmp_path) as store:
        assert list(store.trajectories()) == kept
        assert [t.id for t in store.trajectories("stage = ? AND rejected IS NULL", ("rl",))] == ["a", "b"]
        assert store.count("passed = 1") == 1
        assert store.failures() == {"sandbox": 1}
        assert store.sampled_tokens() == 12


def test_numbers_come_back_exactly_and_texts_whatever_is_in_them(tmp_path: Path, trajectory: Make) -> None:
    made = trajectory("a")
    chunk = replace(made.chunks[0], logprobs=(-math.inf, -0.1), versions=(3, 1 << 30))
    odd = replace(made, chunks=(chunk, *made.chunks[1:]), rejected_because="half a \ud83d", seconds=math.inf)
    with RunStore.create(tmp_path) as store:
        store.add_trajectory(odd)
        assert list(store.trajectories()) == [odd]


def test_what_a_step_has_trained_on_is_stored_with_its_metrics_or_not_at_all(tmp_path: Path) -> None:
    with RunStore.create(tmp_path) as store:
        store.add_metrics("rl", 1, {"loss": 1.0}, [("a", 0, 7), ("b", 1, 7)])
        with pytest.raises(sqlite3.IntegrityError):
            store.add_metrics("rl", 2, {"loss": 2.0}, [("c", 2, 8), ("a", 0, 8)])  # nothing is trained on twice
        assert store.rows("SELECT * FROM trained ORDER BY ordinal") == [("a", 0, 7), ("b", 1, 7)]
        assert store.metrics("rl") == {"loss": [(1, 1.0)]}


def test_a_stored_rollout_may_be_rejected_later(tmp_path: Path, trajectory: Make) -> None:
    with RunStore.create(tmp_path) as store:
        store.add_trajectory(trajectory("a"))
        store.change((REJECT, [("late", "a")]))
        assert list(store.trajectories()) == [replace(trajectory("a"), rejected="late")]
        assert store.count("rejected = 'late'") == 1


def test_the_rollout_that_was_made_for_a_request_is_found_and_no_other(tmp_path: Path, trajectory: Make) -> None:
    made = replace(trajectory("a"), stage="eval", step=3, group="g", task_id="x", seed=7)
    others: list[dict[str, Any]] = [
        {"stage": "rl"}, {"step": 2}, {"group": "h"}, {"task_id": "y"}, {"seed": 8}, {"rejected": "spare"}
    ]  # fmt: skip
    with RunStore.create(tmp_path) as store:
        for i, other in enumerate(others):
            store.add_trajectory(replace(made, id=str(i), **other))
        assert store.find_rollout("eval", 3, "g", "x", [6, 7]) is None
        store.add_trajectory(made)
        assert store.find_rollout("eval", 3, "g", "x", [6, 7]) == made


def test_a_secret_is_removed_from_texts_and_not_from_the_words_by_which_runs_are_read(
    tmp_path: Path, trajectory: Make
) -> None:
    """A value of the environment may be the same word by chance."""
    made = replace(trajectory("count-1"), tags=("train",), made_with=(("tasks", "train"),))
    with RunStore.create(tmp_path, lambda text: re.sub("train|count-1|assistant", "***", text)) as store:
        store.add_trajectory(made)
        store.add_event("checked", task_id="count-1", split="train", text="it trains")
        assert list(store.trajectories()) == [replace(made, tags=("***",), made_with=(("tasks", "***"),))]
        ((_, _, data),) = store.events()
        assert data == {"task_id": "count-1", "split": "train", "text": "it ***s"}


def test_the_reasons_of_a_step_are_those_of_no_other_step(tmp_path: Path, trajectory: Make) -> None:
    rejected = [("eval", 1, "no score"), ("eval", 2, "sandbox"), ("eval", 2, "sandbox"), ("eval", 2, "spare")]
    with RunStore.create(tmp_path) as store:
        for i, (stage, step, reason) in enumerate([*rejected, ("rl", 2, "late"), ("rl", 2, "late"), ("rl", 2, "late")]):
            store.add_trajectory(replace(trajectory(str(i)), stage=stage, step=step, rejected=reason))
        assert store.reasons("eval", 2) == "2 x sandbox, 1 x spare"
        assert [(lost.reason, lost.count) for lost in store.lost(1)] == [("late", 3)]


async def test_a_rollout_whose_task_is_cancelled_is_stored_all_the_same(tmp_path: Path, trajectory: Make) -> None:
    with RunStore.create(tmp_path) as store:
        saving = asyncio.create_task(store.save_trajectory(trajectory("a")))
        await asyncio.sleep(0)
        saving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saving
    with RunStore.open(tmp_path) as store:
        assert store.count() == 1


def test_whoever_sees_the_database_can_read_it(tmp_path: Path) -> None:
    for i in range(20):
        with ThreadPoolExecutor(1) as pool:
            creating = pool.submit(RunStore.create, tmp_path / str(i))
            while not (tmp_path / str(i) / "run.db").exists():
                assert not creating.done() or creating.result()
            RunStore.open(tmp_path / str(i)).close()
            creating.result().close()


def test_a_folder_has_one_writer_at_a_time(tmp_path: Path) -> None:
    with RunStore.create(tmp_path):
        with pytest.raises(
            ConfigError, match=r"Another process writes to .*; wait for its end, or give another folder"
        ):
            RunStore.create(tmp_path)
        RunStore.open(tmp_path).close()
    RunStore.create(tmp_path).close()


def test_a_database_that_is_opened_again_can_be_read_while_it_is_written(tmp_path: Path, trajectory: Make) -> None:
    RunStore.create(tmp_path).close()
    with RunStore.create(tmp_path) as store:
        store.add_trajectory(trajectory("a"))
        with RunStore.open(tmp_path) as reader:
            reading = reader.trajectories()
            next(reading)
            store.add_trajectory(trajectory("b"))
            assert [t.id for t in reading] == []
        assert store.count("1") == 2


def test_a_database_that_cannot_be_opened_leaves_no_lock(tmp_path: Path) -> None:
    (tmp_path / "run.db").mkdir()
    with pytest.raises(sqlite3.OperationalError):
        RunStore.create(tmp_path)
    (tmp_path / "run.db").rmdir()
    RunStore.create(tmp_path).close()


def test_metrics_and_events_come_back_in_order(tmp_path: Path) -> None:
    with RunStore.create(tmp_path) as store:
        store.add_metrics("sft", 0, {"loss": 2.0})
        store.add_metrics("rl", 2, {"loss": 0.5})
        store.add_metrics("rl", 1, {"loss": 1.0, "success": 0.25})
        store.add_event("note", text="hi")
    with RunStore.open(tmp_path) as store:
        assert store.stages() == ["sft", "rl"]
        assert store.metrics("rl") == {"loss": [(1, 1.0), (2, 0.5)], "success": [(1, 0.25)]}
        assert [(kind, data) for _, kind, data in store.events()] == [("note", {"text": "hi"})]


def test_a_metric_that_is_no_number_breaks_nothing(tmp_path: Path) -> None:
    with RunStore.create(tmp_path) as store:
        store.add_metrics("rl", 1, {"loss": math.nan, "gap": math.inf})
        store.add_metrics("rl", 2, {"loss": 1.0})
    with RunStore.open(tmp_path) as store:
        metrics = store.metrics("rl")
    assert math.isnan(metrics["loss"][0][1])
    assert metrics["loss"][1] == (2, 1.0)
    assert metrics["gap"] == [(1, math.inf)]


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "run #1 50%? é"
    RunStore.create(folder).close()
    with RunStore.open(folder) as store:
        assert store.count() == 0


def test_what_is_no_run_folder_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a run folder"):
        RunStore.open(tmp_path)
    (tmp_path / "run.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(ConfigError, match="cannot be read as a run database"):
        RunStore.open(tmp_path)


def test_a_run_of_another_schema_is_refused_with_what_to_do(tmp_path: Path) -> None:
    RunStore.create(tmp_path).close()
    with sqlite3.connect(tmp_path / "run.db") as db:
        db.execute("UPDATE meta SET value = '1' WHERE key = 'schema'")
    with pytest.raises(ConfigError, match=r"has schema version 1; .* Start the run again, or read it with the release"):
        RunStore.open(tmp_path)


def test_finished_trajectories_survive_kill_9(tmp_path: Path) -> None:
    program = textwrap.dedent(f"""
        import sys; sys.path.insert(0, {str(Path(support.__file__).parents[1])!r})
        from support.sample_trajectory import build_trajectory
        from pathlib import Path
        from ale.store.run_store import RunStore
        store = RunStore.create(Path({str(tmp_path)!r}))
        for i in range(10_000):
            store.add_trajectory(build_trajectory(str(i)))
            print(i, flush=True)
    """)
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    announced = -1
    for line in child.stdout:
        announced = int(line)
        if announced >= 50:
            os.kill(child.pid, signal.SIGKILL)
            break
    child.wait()
    child.stdout.close()
    with RunStore.open(tmp_path) as store:
        ids = [t.id for t in store.trajectories()]
    assert ids[: announced + 1] == [str(i) for i in range(announced + 1)]


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    path = write_whole(tmp_path / "summary.json", "{}\n")
    assert path.read_text() == "{}\n"
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


def test_what_is_synced_holds_up_nobody_who_writes_meanwhile(tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "run") as store, ThreadPoolExecutor(2) as threads:
        synced = [threads.submit(asyncio.run, store.sync()) for _ in range(100)]
        for i in range(100):
            store.add_metrics("rl", i, {"success": 1.0})
        for done in synced:
            done.result()
        assert len(store.metrics("rl")["success"]) == 100
