"""A run whose trainer's processes have died."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ale.errors import TrainerError, TrainerLost
from ale_train.pipeline import run as pipeline
from ale_train.pipeline.preflight import RunPlan
from ale_train.pipeline.stages import Stages


class Attempts:
    """Each attempt at a run leaves the next of `checkpoints` and then ends with the next of `errors`."""

    def __init__(self, checkpoints: list[str], errors: list[Exception]) -> None:
        self.checkpoints, self.errors = checkpoints, errors
        self.run_ids: list[str] = []
        self.stages: list[Stages] = []
        self.notes: list[str] = []

    async def execute(self, attempt: pipeline.Attempt) -> str:
        self.run_ids.append(attempt.run_id)
        self.stages.append(attempt.plan.stages)
        if len(self.run_ids) <= len(self.errors):
            raise self.errors[len(self.run_ids) - 1]
        return "done"

    async def run(self, monkeypatch: pytest.MonkeyPatch, folder: Path, only: Any = "all") -> Any:
        monkeypatch.setattr(pipeline, "new_run_folder", lambda config: ("new", folder))
        monkeypatch.setattr(pipeline, "run_to_resume", lambda folder, config, steps: "resumed")
        monkeypatch.setattr(pipeline, "newest_checkpoint", lambda folder: self.checkpoints[len(self.run_ids) - 1])
        monkeypatch.setattr(pipeline, "plan_copies", lambda *arguments: SimpleNamespace(config=""))
        monkeypatch.setattr(pipeline, "changed_files", lambda folder: ())
        monkeypatch.setattr(pipeline.Attempt, "execute", lambda attempt: self.execute(attempt))
        config: Any = SimpleNamespace(cpt=None, sft=None, rl=None)
        loaded: Any = SimpleNamespace(run=config, values=None, files=None)
        required: Any = None
        plan = RunPlan(loaded, required, Stages(), only, None, None)
        progress: Any = SimpleNamespace(note=self.notes.append)
        return await pipeline.run(plan, progress)


LOST = TrainerLost("A rank died.")


async def test_it_goes_on_from_its_newest_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    attempts = Attempts(["sft_20", "step_10"], [LOST, LOST])
    assert await attempts.run(monkeypatch, tmp_path) == "done"
    assert attempts.run_ids == ["new", "resumed", "resumed"]
    assert len({id(stages) for stages in attempts.stages}) == 3, "each attempt has stages of its own"
    assert attempts.notes == [f"A rank died. The run goes on from its checkpoint {at}." for at in ("sft_20", "step_10")]


@pytest.mark.parametrize(
    ("checkpoints", "error", "half", "attempts"),
    [
        ([""], LOST, "all", 1),
        (["step_1", "step_1"], LOST, "all", 2),
        (["step_1"], LOST, "rollout", 1),
        (["step_1"], TrainerError("Training collapses."), "all", 1),
    ],
    ids=["without a checkpoint", "without a new one", "half of the loop", "another fault"],
)
async def test_otherwise_the_error_ends_it(
    checkpoints: list[str],
    error: Exception,
    half: str,
    attempts: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    made = Attempts(checkpoints, [error] * 9)
    with pytest.raises(type(error), match=str(error)):
        await made.run(monkeypatch, tmp_path, only=half)
    assert len(made.run_ids) == attempts
