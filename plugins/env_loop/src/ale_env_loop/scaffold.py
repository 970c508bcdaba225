"""The scaffold `env`: the model's answers are an environment's actions, and its observations the user's messages.

1. The episode's environment is reset with the task's seed. The first message is the task's instruction, if it has one,
   with the first observation.
2. Each answer of the model is an action, and each observation the next message, until the environment ends the episode.
   The environment's reward for the step is recorded with the observation (`Observation.reward`).
3. A text that is no action of the environment does not reach it: the turn is marked as an illegal call with the reward
   0, and the model gets a message with the reason.
"""

from __future__ import annotations

import time

from pydantic import Field

from ale.errors import TaskError
from ale.messages import ChatReply, Message, ModelCall
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.sandbox import Sandbox
from ale.specs.scaffold import ModelSession, Scaffold
from ale.task import Task
from ale_env_loop.environment import Environment, EpisodeSpec, IllegalAction, Step, read_episode
from ale_env_loop.environment_pool import EnvironmentPool


class EnvScaffoldConfig(PluginConfig):
    """Settings of the scaffold `env`."""

    max_turns: int = Field(20, gt=0, description="Model calls after which the episode ends.")
    timeout_s: float = Field(60.0, gt=0, description="Seconds that the environment has for a reset or a step.")
    start_timeout_s: float = Field(
        120.0, gt=0, description="Seconds to import the environment, or to find a free session of its server."
    )


class EnvScaffold(Driver, Scaffold):
    """Plays an environment with reset and step: the model's answers are its actions."""

    api_version = ">=1.0,<1.2"
    Config = EnvScaffoldConfig
    config: EnvScaffoldConfig

    def __init__(self, config: EnvScaffoldConfig, context: DriverContext) -> None:
        super().__init__(config, context)
        self._environments = EnvironmentPool(config.start_timeout_s, config.timeout_s)

    @classmethod
    def uses_sandbox(cls, config: EnvScaffoldConfig) -> bool:
        """An environment runs in a process of its own, not in a sandbox."""
        return False

    async def close(self) -> None:
        """End the environments."""
        await self._environments.close()

    async def run(self, task: Task, sandbox: Sandbox, session: ModelSession) -> str:
        """Returns `terminated` or `truncated` as the environment says, or `max_turns`."""
        episode = read_episode(task)
        async with self._environments.open(episode) as environment:
            try:
                first = await environment.reset(episode.seed, episode.row)
            except IllegalAction as refusal:
                raise TaskError(f"The task '{task.id}' cannot be reset to: {refusal}") from None
            history = begin_conversation(task, first)
            for _ in range(self.config.max_turns):
                reply = (await session.answer(ModelCall(tuple(history), tool_choice="none")))[0]
                step = await take_turn(environment, episode, reply, session)
                if step.done:
                    return "terminated" if step.terminated else "truncated"
                history += [reply.message, *step.messages]
        return "max_turns"


def begin_conversation(task: Task, first: Step) -> list[Message]:
    """Return the messages before the model's first turn."""
    messages = [*task.messages, *first.messages]
    if not task.instruction:
        return messages
    if len(first.messages) == 1 and first.messages[0].role == "user":
        return [*task.messages, Message("user", f"{task.instruction}\n{first.text}")]
    return [*task.messages, Message("user", task.instruction), *first.messages]


async def take_turn(environment: Environment, episode: EpisodeSpec, reply: ChatReply, session: ModelSession) -> Step:
    """Carry out the action in the model's answer, and record what came of it."""
    text, began = reply.message.content, time.monotonic()
    try:
        text = episode.find_action(text)
        step = await environment.step(text)
    except IllegalAction as refusal:
        step = Step((Message("user", f"Error: {refusal}"),))
        session.mark_error(reply.chunk, "illegal_call", str(refusal))
    seconds = time.monotonic() - began
    session.observe(
        reply.chunk,
        "step",
        arguments={"action": text},
        text=step.text,
        exit_code=None,
        seconds=seconds,
        reward=step.reward,
    )
    return step
