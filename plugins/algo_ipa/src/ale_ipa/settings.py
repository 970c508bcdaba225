"""The settings of experts, of starts, and of the hybrid loss (paper, 3.2.4.4 and Eq. 10)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from ale.specs.algorithm import RunOutline
from ale.specs.choice import Patterns
from ale.specs.driver import PluginConfig
from ale.store.run_store import DB_NAME

NEEDS = {
    "anchors": "parallel",
    "anchor_choice": "parallel",
    "advance_at": "rollback",
    "fork_drop": "rollback",
}
"""Each of these settings is read with only one value of `start`."""


class ExpertsConfig(PluginConfig):
    """Settings of where experts come from, and how a rollout reaches the state after an expert's first chunks."""

    demonstrations: bool = Field(
        True, description="Use the demonstrations of the warm start (sft.demonstrations), if there is one."
    )
    demonstrate: int = Field(
        0, ge=0, description="Attempts of the task source's demonstrator at a task that has no expert yet."
    )
    data: tuple[Path, ...] = Field(
        (), description="Run folders whose trajectories of the split `train` become experts."
    )
    replay_ignore: Patterns = Field(
        (),
        description=(
            "Regular expressions for the parts (times, ids) of observations that are ignored when an expert is "
            "replayed."
        ),
    )
    start_states: Literal["replay", "snapshot"] = Field(
        "replay",
        description=(
            "How a sandbox gets into the state after an expert's chunks. replay: each rollout runs their commands"
            " again. snapshot: they run once, and rollouts start from snapshots (needs a provider with "
            "snapshots). Agents that run inside the sandbox, or that keep a shell, are always replayed."
        ),
    )

    @model_validator(mode="after")
    def _from_somewhere(self) -> ExpertsConfig:
        if not (self.demonstrations or self.demonstrate or self.data):
            raise ValueError("experts has no source: set demonstrations, demonstrate or data")
        return self

    def objections(self, run: RunOutline) -> Iterator[str]:
        for path in self.data:
            if not (path / DB_NAME).is_file():
                yield f"algorithm.experts.data: {path} is no run folder (it holds no {DB_NAME})."
        if not (run.demonstrations or self.demonstrate or self.data):
            yield (
                "algorithm.experts: the run makes no demonstrations to take experts from (it has no 'sft' section, or "
                "is made with '--only rollout'); give algorithm.experts.demonstrate or algorithm.experts.data."
            )
        if run.resample_even_groups:
            yield (
                "rl.resample_even_groups takes away the groups by which experts are judged (all passed from this "
                "start, all failed from that one); leave it or algorithm.experts out."
            )
        if self.start_states == "snapshot" and run.agents_inside:
            yield (
                "algorithm.experts.start_states: every agent of the run is inside its sandbox, and no such agent can "
                "go on in a snapshot; leave the key out, or use a scaffold that acts from outside, such as iflow."
            )


class StartSettings(PluginConfig):
    """The settings of IPA that concern experts."""

    experts: ExpertsConfig | None = Field(
        None,
        description=(
            "Start rollouts from trajectories that passed; {}: from the demonstrations of the warm start; null: "
            "every rollout starts at the beginning."
        ),
    )

    start: Literal["parallel", "rollback", "beginning"] = Field(
        "parallel",
        description="Where rollouts of a task with an expert start: at several of its chunks at once (parallel), at "
        "one chunk that moves from the last to the first as the policy succeeds (rollback), or at the beginning. "
        "Tasks without an expert start at the beginning.",
    )
    anchors: int = Field(
        4,
        ge=2,
        description=(
            "parallel: number of a task's start chunks in a step, which always include the first; at most "
            "group_size (half of it with return_signal group_centered)."
        ),
    )
    anchor_choice: Literal["uniform", "random"] = Field(
        "uniform", description="parallel: start chunks at even distances, or drawn at random in each step."
    )
    window: int = Field(
        8,
        gt=0,
        description=(
            "rollback: rollouts over which the success from a start is measured. Also: if this many rollouts are "
            "lost on the way to starts that none has reached, their expert is replaced, cut short or dropped."
        ),
    )
    advance_at: float = Field(
        0.5, gt=0, le=1, description="rollback: success rate at which the start moves one chunk back."
    )
    fork_drop: float = Field(
        0.3,
        ge=0,
        lt=1,
        description=(
            "rollback: if the success rate falls by more than this when the start moves one chunk back, that "
            "chunk is crucial."
        ),
    )
    refresh_every: int = Field(
        10,
        ge=0,
        description="Every so many steps, shorter successes of the policy itself replace experts; 0: never.",
    )
    lambda_il: float = Field(
        1.0,
        ge=0,
        description=(
            "Weight of the loss that imitates the expert's chunks up to the crucial one (Eq. 10); 0: no imitation."
        ),
    )
    lambda_rl: float = Field(1.0, gt=0, description="Weight of the loss of Eq. 9 beside that of Eq. 10.")
    il_when: Literal["no_positive", "always"] = Field(
        "no_positive",
        description="Imitate at starts from which no rollout of the step passed, or at every start.",
    )

    @model_validator(mode="after")
    def _no_idle_start(self) -> StartSettings:
        given = self.expert_settings
        if self.start == "beginning" and given - {"start"}:
            raise ValueError(
                f"{', '.join(sorted(given - {'start'}))} does nothing with start 'beginning', which uses no expert; "
                "leave it out"
            )
        idle = sorted(name for name, start in NEEDS.items() if name in given and self.start != start)
        if idle:
            raise ValueError(
                f"{', '.join(idle)} does nothing with start '{self.start}'; leave it out or set start to "
                f"'{NEEDS[idle[0]]}'"
            )
        if self.lambda_il == 0 and given & {"il_when", "lambda_rl"}:
            raise ValueError(
                f"{', '.join(sorted(given & {'il_when', 'lambda_rl'}))} does nothing with lambda_il 0, which imitates "
                "nothing; leave it out"
            )
        if self.experts is None and self.start != "beginning" and given:
            raise ValueError(
                f"{', '.join(sorted(given))} is for rollouts that start from experts, and there are none: give "
                "experts (its keys name their sources), or leave it out"
            )
        return self

    @property
    def expert_settings(self) -> set[str]:
        """The names of those settings here that the run file gives."""
        none = {"experts"} if self.experts is None else set()
        return self.model_fields_set & set(StartSettings.model_fields) - none
