"""Settings of where rollouts start and of the hybrid loss (paper, 3.2.4.4 and Eq. 10)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from ale.specs.driver import PluginConfig

NEEDS = {
    "anchors": "parallel",
    "anchor_choice": "parallel",
    "advance_at": "rollback",
    "fork_drop": "rollback",
}
"""Settings that one way of starting alone reads."""


class StartSettings(PluginConfig):
    """The part of IPA's settings that concerns experts."""

    start: Literal["parallel", "rollback", "beginning"] = Field(
        "parallel",
        description="Where rollouts of a task with an expert start: at several of its chunks at once (parallel), at one "
        "chunk that moves from the last to the first as the policy succeeds (rollback), or at the beginning. Tasks "
        "without an expert start at the beginning.",
    )
    anchors: int = Field(
        4,
        ge=2,
        description="parallel: start chunks of a task in a step, the first always among them; no more than "
        "group_size (half of it with return_signal group_centered).",
    )
    anchor_choice: Literal["uniform", "random"] = Field(
        "uniform", description="parallel: start chunks at even distances, or drawn anew in each step."
    )
    window: int = Field(
        8,
        gt=0,
        description="Rollouts over which the success from a start is measured (rollback), and after how many that were "
        "all lost on the way to their start an expert gives way to another, or is cut short.",
    )
    advance_at: float = Field(
        0.5, gt=0, le=1, description="rollback: success rate at which the start moves to the chunk before."
    )
    fork_drop: float = Field(
        0.3,
        ge=0,
        lt=1,
        description="rollback: a success rate lower by more than this one chunk earlier marks that chunk as crucial.",
    )
    refresh_every: int = Field(
        10,
        ge=0,
        description="Steps after which shorter successes of the policy itself replace experts; 0: never.",
    )
    lambda_il: float = Field(
        1.0, ge=0, description="Weight of imitating the expert's chunks up to the crucial one (Eq. 10); 0: do not."
    )
    lambda_rl: float = Field(1.0, gt=0, description="Weight of Eq. 9 beside it.")
    il_when: Literal["no_positive", "always"] = Field(
        "no_positive",
        description="Imitate where no rollout of the update passed from the same start, or at every start.",
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
        return self

    @property
    def expert_settings(self) -> set[str]:
        """Those that were given."""
        return self.model_fields_set & set(StartSettings.model_fields)
