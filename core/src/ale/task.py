"""A task: the agent's instruction, the files in its sandbox, and the hidden tests that judge the result."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

TRAIN, HELDOUT = "train", "heldout"


class TaskTests(BaseModel):
    """The hidden tests: they reach the sandbox only when the reward is computed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: str = Field(description="Shell command run in the work folder; exit code 0 means that the task is solved.")
    files: dict[str, str] = Field(
        default_factory=dict,
        description="Test files, path -> text. They are in the folder $ALE_TESTS while the command runs.",
    )
    timeout_s: float = Field(
        30.0, gt=0, description="Seconds before the tests are stopped; a time-out is a failed test."
    )


class Task(BaseModel):
    """One task. It is frozen, and two tasks with the same id are the same task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1, description="Unique in its source, stable between runs.")
    instruction: str = Field(description="The instruction for the agent.")
    tests: TaskTests
    files: dict[str, str] = Field(
        default_factory=dict, description="Files in the work folder at the start: relative path -> text."
    )
    image: str | None = Field(None, description="Container image that the task needs; null: the provider's default.")
    env: dict[str, str] = Field(default_factory=dict, description="Environment variables in the sandbox.")
    tags: tuple[str, ...] = Field((), description="Words by which tasks are selected, such as family or difficulty.")
    solution: str | None = Field(None, description="Reference solution: a shell script that solves the task.")
    metadata: dict[str, Any] = Field(default_factory=dict, description="Data that the task source adds.")
