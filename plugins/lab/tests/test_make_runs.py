"""Runs are made with the command `ale`: finished ones stay, interrupted and failed ones are run again."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from ale.errors import AleError, ConfigError
from ale.store.run_store import DB_NAME, SUMMARY_NAME, RunStore
from ale_lab.make_runs import is_finished, make_runs
from ale_lab.run_plan import Run

pytestmark = pytest.mark.usefixtures("forked_runs")
SCRIPTED = """
tasks: {use: bash, families: [write]}
sandbox: {use: local}
engine: {use: scripted, answers: ["<tool_call>\\n{\\"name\\": \\"finish\\", \\"arguments\\": {}}\\n</tool_call>"]}
trainer: null
eval: {episodes: 2}
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run without a model, of two episodes."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(SCRIPTED)
    return Run("one", tmp_path / "runs" / "one", recipe, ("seed=3",))


async def test_a_finished_run_is_not_made_again(run: Run) -> None:
    told: list[str] = []
    await make_runs([run], 1, told.append)
    assert is_finished(run.folder)
    assert told[0].startswith("one: done after ")
    before = (run.folder / SUMMARY_NAME).stat().st_mtime_ns
    await make_runs([run], 1, told.append)
    assert len(told) == 1
    assert (run.folder / SUMMARY_NAME).stat().st_mtime_ns == before


async def test_other_settings_in_the_same_folder_are_refused(run: Run) -> None:
    await make_runs([run], 1, print)
    with pytest.raises(ConfigError, match=r"one holds a run with other settings than 'one' has now"):
        await make_runs([replace(run, overrides=("seed=4",))], 1, print)


async def test_an_interrupted_run_is_made_anew(run: Run) -> None:
    await make_runs([run], 1, print)
    summary = json.loads((run.folder / SUMMARY_NAME).read_text())
    (run.folder / SUMMARY_NAME).write_text(json.dumps(summary | {"status": "interrupted"}))
    (run.folder / "left.txt").write_text("by the interrupted one")
    await make_runs([run], 1, print)
    assert is_finished(run.folder)
    assert not (run.folder / "left.txt").exists()


async def test_a_mistake_in_the_settings_is_told_before_anything_runs(run: Run, tmp_path: Path) -> None:
    wrong = replace(run, name="two", folder=tmp_path / "two", overrides=("sede=4",))
    with pytest.raises(ConfigError, match="sede"):
        await make_runs([run, wrong], 2, print)
    assert not run.folder.exists()


async def test_one_that_fails_is_told_and_the_others_go_on(run: Run, tmp_path: Path) -> None:
    failing = replace(run, name="two", folder=tmp_path / "two", overrides=("eval.split=nowhere",))
    with pytest.raises(AleError, match=r"(?s)1 of 2 runs failed.*two: .*not 'nowhere'.*two\.log"):
        await make_runs([failing, run], 1, print)
    assert is_finished(run.folder)


async def test_when_stopped_no_run_is_left_behind(run: Run) -> None:
    slow = replace(run, overrides=("eval.episodes=100000", "rollout.concurrency=1"))
    task = asyncio.create_task(make_runs([slow], 1, print))
    async with asyncio.timeout(60):
        while not (slow.folder / "run.db").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert json.loads((slow.folder / SUMMARY_NAME).read_text())["status"] == "interrupted"


async def test_what_another_lab_is_making_is_left_alone(run: Run) -> None:
    with RunStore.create(run.folder) as store:
        with pytest.raises(AleError, match=r"one: Another process writes to .*one; wait for its end"):
            await make_runs([run], 1, print)
        assert store.count("1") == 0
        assert (run.folder / DB_NAME).exists()


async def test_what_another_lab_has_finished_meanwhile_is_not_made_again(run: Run) -> None:
    seen: list[int] = []

    def tell(_: str) -> None:
        seen.append((run.folder / SUMMARY_NAME).stat().st_mtime_ns)

    # Both are looked at while nothing is there, as two labs do, and take turns.
    await make_runs([replace(run, name="first"), replace(run, name="second")], 1, tell)
    assert len(seen) == 2
    assert seen[0] == seen[1]


async def test_what_the_system_refuses_stops_no_other_run(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = replace(run, name="two", folder=tmp_path / "file" / "deep" / "two")
    with pytest.raises(ConfigError, match=r"two cannot be read: Not a directory"):
        await make_runs([refused, run], 1, print)
    (tmp_path / "loop").symlink_to(tmp_path / "gone" / "deeper")
    refused = replace(run, name="two", folder=tmp_path / "loop" / "two")
    with pytest.raises(AleError, match=r"(?s)1 of 2 runs failed.*two: .*File exists"):
        await make_runs([refused, run], 1, print)
    assert is_finished(run.folder)
