"""A demonstrator that answers as the environment's own expert does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ale.errors import TaskError
from ale.messages import Message, ToolSpec
from ale.specs.start import Reply
from ale_env_loop.environment import EpisodeSpec, IllegalAction
from ale_env_loop.environment_pool import EnvironmentPool

MOST_STEPS = 1000


class Demonstrator:
    """It answers in one episode. The expert plays the whole episode on another environment with the same seed first, so
    that it may look at what the model cannot see."""

    def __init__(self, environments: EnvironmentPool, episode: EpisodeSpec, seed: int, timeout_s: float) -> None:
        self._environments = environments
        self._episode = episode
        self._seed = seed
        self._timeout_s = timeout_s
        self._played: dict[str, Any] | None = None
        self._given = 0

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Reply | None:
        """Return the expert's next answer; None after its last. Raises `TaskError` if the environment does not answer
        as it did to the expert."""
        if self._played is None:
            self._played = await self._play()
        answers = self._played["answers"]
        if self._given:
            self._check(messages, [message["content"] for message in self._played["shown"][self._given - 1]])
        if self._given == len(answers):
            return None
        self._given += 1
        return Reply(Message("assistant", answers[self._given - 1]))

    async def _play(self) -> dict[str, Any]:
        e = self._episode
        more = {"seed": e.seed, "row": e.row, "rng_seed": self._seed, "pattern": e.action, "most": MOST_STEPS}
        try:
            async with self._environments.lend(e) as process:
                played: dict[str, Any] = await process.request("demonstrate", self._timeout_s, **more)
        except IllegalAction as refusal:
            raise TaskError(f"The expert of the environment {e.env} gave no action: {refusal}") from None
        return played

    def _check(self, messages: Sequence[Message], wanted: list[str]) -> None:
        seen = [message.content for message in messages[len(messages) - len(wanted) :]]
        if seen != wanted:
            raise TaskError(
                f"The environment {self._episode.env} answered {seen!r:.200} in a demonstration, where it had answered "
                f"{wanted!r:.200} to the expert with the same seed {self._episode.seed}; after reset(seed), the same "
                "actions must have the same answers."
            )
