"""The reward `exact`: 1 if the reply, or the part of it that a pattern finds, is the right answer, else 0."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.reward import GradedSandbox, Reward
from ale.task import Task
from ale.trajectory import Score, Trajectory
from ale_rewards.conversation import read_conversation
from ale_rewards.task_column import Column, as_text

BOXED = r"\boxed{...}"


class ExactReward(Driver, Reward):
    """1 if the reply, or the part of it that a pattern finds, is the right answer, else 0."""

    api_version = ">=1.0,<1.2"

    class Config(PluginConfig):
        """Settings of the reward `exact`."""

        answer: str = Field(
            "answer", description="Column with the right answer, or with a list of answers that are all right."
        )
        extract: str | None = Field(
            None,
            description="Regular expression for the answer in the reply: its last match counts, of that its first "
            f"group if it has one. {BOXED} stands for the content of the last box of LaTeX. null: the whole reply.",
        )
        normalize: bool = Field(
            True, description="Whether case, repeated white space, and a full stop at the end make no difference."
        )

        @field_validator("extract")
        @classmethod
        def _is_a_pattern(cls, value: str | None) -> str | None:
            if value is not None and value != BOXED:
                try:
                    re.compile(value)
                except re.error as error:
                    raise ValueError(f"{value!r} is no regular expression: {error}") from None
            return value

    config: Config

    def __init__(self, config: Config, context: DriverContext) -> None:
        super().__init__(config, context)
        self._answers = Column("reward.answer", config.answer)

    @classmethod
    def uses_sandbox(cls, config: Config) -> bool:
        """It reads the reply alone."""
        return False

    @classmethod
    def objection(cls, config: Config, task: Task) -> str:
        """Return whether the task lacks the column."""
        return Column("reward.answer", config.answer).objection(task)

    async def score(self, task: Task, sandbox: GradedSandbox, trajectory: Trajectory) -> Score:
        right = self._answers.read(task)
        answers = [as_text(one) for one in (right if isinstance(right, list | tuple) else [right])]
        found = extract_answer(read_conversation(task, trajectory).reply, self.config.extract)
        if found is None:
            return Score(0.0, False, f"Nothing in the reply fits {self.config.extract}.")
        alike = normal_form if self.config.normalize else str
        passed = alike(found) in {alike(answer) for answer in answers}
        return Score(float(passed), passed, f"{found.strip()!r:.200}; right is {' or '.join(answers)!r:.200}.")


def extract_answer(reply: str, pattern: str | None) -> str | None:
    """Return the answer in a reply, None if nothing fits the pattern."""
    if pattern is None:
        return reply
    if pattern == BOXED:
        return last_box(reply)
    matches = list(re.finditer(pattern, reply))
    if not matches:
        return None
    return matches[-1][1 if matches[-1].re.groups else 0]


def last_box(text: str) -> str | None:
    r"""Return what is in the last closed `\boxed{...}`, braces in it included; None if there is none."""
    for opening in reversed([match.end() for match in re.finditer(r"\\boxed\s*\{", text)]):
        depth = 1
        for place in range(opening, len(text)):
            depth += {"{": 1, "}": -1}.get(text[place], 0)
            if depth == 0:
                return text[opening:place]
    return None


def normal_form(text: str) -> str:
    """Return a text without differences that do not matter."""
    return " ".join(text.split()).removesuffix(".").rstrip().casefold()
