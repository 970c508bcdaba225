"""The control loop: ask the model, run its tool calls, show it what happened, until it finishes.

1. The history starts with the system prompt and the task's instruction, and only grows.
2. A reply with tool calls is executed call by call; each answer is a `tool` message.
3. A call that cannot be read, names no tool or has wrong arguments is answered with a sentence and recorded as an
   *illegal call*; one that times out, or exits non-zero with something on stderr, as a *failed execution*.
4. The episode ends with `finish`, with a reply that calls no tool, or when its turns are used up.
"""

from __future__ import annotations

from pydantic import Field

from ale.messages import Message, ModelCall
from ale.specs.driver import Driver, PluginConfig
from ale.specs.sandbox import Sandbox
from ale.specs.scaffold import ModelSession, Scaffold
from ale.task import Task
from ale_iflow.tools import FINISH, TOOLS, ToolBox


class IFlow(Driver, Scaffold):
    """Single-agent control loop."""

    api_version = ">=1.0,<1.2"

    class Config(PluginConfig):
        """Settings of the scaffold `iflow`."""

        system_prompt: str = Field(
            "You are an agent in a shell. Solve the task, then call finish.", description="The first message."
        )
        max_turns: int = Field(8, gt=0, description="Model calls after which the episode ends.")
        command_timeout_s: float = Field(20.0, gt=0, description="Seconds after which a shell command is stopped.")
        max_output_chars: int = Field(
            4000, gt=0, description="Most characters in one tool answer; the middle of a longer one is removed."
        )

    config: Config

    def first_call(self, task: Task) -> ModelCall:
        return ModelCall(tuple(self._opening(task)), TOOLS)

    def _opening(self, task: Task) -> list[Message]:
        return [Message("system", self.config.system_prompt), Message("user", task.instruction)]

    async def run(self, task: Task, sandbox: Sandbox, session: ModelSession) -> str:
        box = ToolBox(sandbox, self.config.command_timeout_s, self.config.max_output_chars)
        history = self._opening(task)
        for _ in range(self.config.max_turns):
            reply = await session.chat(history, TOOLS)
            history.append(reply.message)
            if reply.illegal is not None:
                # The endpoint has recorded the error with the chunk; the model learns of it in words.
                history.append(Message("user", f"Error: {reply.illegal}"))
                continue
            if not reply.message.tool_calls:
                return "answer"
            finished = False
            for call in reply.message.tool_calls:
                outcome = await box.run(call)
                session.observe(
                    reply.chunk,
                    call.name,
                    arguments=outcome.arguments,
                    text=outcome.text,
                    exit_code=outcome.exit_code,
                    seconds=outcome.seconds,
                )
                if outcome.error is not None:
                    session.mark_error(reply.chunk, outcome.error, outcome.text)
                history.append(Message("tool", outcome.text, tool_call_id=call.id))
                finished = finished or (call.name == FINISH and outcome.error is None)
            if finished:
                return "finish"
        return "max_turns"
