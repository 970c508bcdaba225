"""The pluggy hook specs: what an observer may hear. Observers come through the entry-point group `ale.hooks`.

Calls are synchronous and never stand on the token path. An observer that raises is logged and does not break the
run, except in the two *veto* hooks (`ale_before_exec`, `ale_filter_trajectory`), where an error is a refusal.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pluggy

from ale.specs.trainer import TrainBatch
from ale.task import Task
from ale.trajectory import Chunk, Trajectory

PROJECT = "ale"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class HookSpecs:
    """Every hook of ALE."""

    @hookspec
    def ale_run_started(self, run_id: str, run_dir: Path, config: Mapping[str, Any]) -> None:
        """A run begins; `config` is the resolved configuration."""

    @hookspec
    def ale_sandbox_started(self, sandbox_id: str, task: Task) -> None:
        """A sandbox for this task has started."""

    @hookspec
    def ale_before_exec(self, sandbox_id: str, task: Task, command: str) -> str | None:
        """The agent is about to run a command; return a sentence to refuse it (the agent sees the sentence)."""

    @hookspec
    def ale_model_called(self, session_id: str, chunk: Chunk) -> None:
        """The model answered a call."""

    @hookspec
    def ale_trajectory_finished(self, trajectory: Trajectory) -> None:
        """A rollout has ended and is stored."""

    @hookspec
    def ale_filter_trajectory(self, trajectory: Trajectory) -> str | None:
        """A rollout is about to enter training; return the reason to keep it out."""

    @hookspec
    def ale_batch_ready(self, step: int, batch: TrainBatch) -> None:
        """A batch is packed and about to be trained on."""

    @hookspec
    def ale_step_finished(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """A training step is done."""

    @hookspec
    def ale_run_finished(self, run_id: str, summary: Mapping[str, Any]) -> None:
        """The run is over, whichever way; `summary` is what stands in summary.json."""

    @hookspec
    def ale_commands(self, app: Any) -> None:
        """Add commands to the `ale` command line (`app` is its typer application)."""
