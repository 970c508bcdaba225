"""The loop writes a checkpoint: it is finished, and holds what holds for its version."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ale_train.config.rl import RLConfig
from ale_train.rl import loop
from ale_train.rl.checkpoint import LoopState
from ale_train.rl.loop import Training


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Training:
    """A loop after its fifth step."""
    notes: list[str] = []
    bench: Any = SimpleNamespace(
        engine=SimpleNamespace(version=5),
        algorithm=SimpleNamespace(state=dict),
        store=None,
        evaluations={},
        seconds={},
        progress=SimpleNamespace(note=notes.append, notes=notes),
    )
    producer: Any = SimpleNamespace(steps_done=5, state=dict, is_open=lambda: True)
    monkeypatch.setattr(loop, "seconds_so_far", lambda store: 0.0)
    slots: Any = None
    return Training(bench, RLConfig(), producer, slots)


async def test_a_checkpoint_is_finished_although_the_run_is_stopped_meanwhile(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end, written = asyncio.Event(), asyncio.Event(), []

    async def write(bench: Any, state: LoopState, keep: int) -> None:
        begun.set()
        await may_end.wait()
        written.append(state.step)

    monkeypatch.setattr(loop, "write_checkpoint", write)
    saving = asyncio.ensure_future(training._save())
    async with asyncio.timeout(60):
        await begun.wait()
        saving.cancel()
        asyncio.get_running_loop().call_soon(may_end.set)
        with pytest.raises(asyncio.CancelledError):
            await saving
    assert written == [5]
    assert training._saved == 5


@pytest.mark.parametrize(("step", "due"), [(5, ("step_5", 5)), (4, None)])
async def test_an_evaluation_is_made_again_only_with_the_version_that_it_measured(
    training: Training, monkeypatch: pytest.MonkeyPatch, step: int, due: tuple[str, int] | None
) -> None:
    written: list[LoopState] = []

    async def write(bench: Any, state: LoopState, keep: int) -> None:
        written.append(state)

    monkeypatch.setattr(loop, "write_checkpoint", write)
    training._evaluation_due = f"step_{step}", step
    await training._save()
    assert [state.evaluation_due for state in written] == [due]
    assert any("broken off" in note for note in training._bench.progress.notes) is (due is None)
