"""The conversation: send the task, take the reply, answer it if something answers, until it ends.

1. It starts with the system message, the task's earlier messages, and its instruction as the user's message.
2. A reply with tool calls is answered by the tools (`tools.py`), any other by the user: a fixed text or a function
   (`user.py`). Without a user it ends the episode.
3. It also ends when a reply fits a stop rule, when the user has nothing more to say, or when its turns are used up.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pydantic import Field, field_validator, model_validator

from ale.messages import ChatReply, Message, ModelCall
from ale.registry.user_functions import FunctionName, UserFunction
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.sandbox import Sandbox
from ale.specs.scaffold import ModelSession, Scaffold
from ale.task import Task
from ale_chat.tools import FunctionTool, run_tool
from ale_chat.user import SANDBOX, Turn, ask_user

SEVERAL_TURNS = 8


class Chat(Driver, Scaffold):
    """A conversation without an environment of its own."""

    api_version = ">=1.0,<1.2"

    class Config(PluginConfig):
        """Settings of the scaffold `chat`."""

        system: str | None = Field(None, description="System message, for tasks that bring none.")
        max_turns: int | None = Field(
            None,
            gt=0,
            description=f"Replies of the model after which the episode ends; null: {SEVERAL_TURNS} with tools or with "
            "something that answers (`reply`, `user`), otherwise 1.",
        )
        reply: str | None = Field(None, description="Fixed text that answers each reply, such as 'Try again.'")
        user: FunctionName | None = Field(
            None,
            description="Function that answers each reply: file.py:function, module:function, or a mapping with path "
            "and function. It returns the next text or null to end, alone or in a pair with a reward for the reply.",
        )
        stop_when: tuple[str, ...] = Field(
            (), description="A reply that has one of these in it ends the episode: texts, or /regular expressions/."
        )
        tools: tuple[FunctionName, ...] = Field(
            (), description="Functions that the model may call: file.py:function or module:function."
        )
        tool_timeout_s: float = Field(30.0, gt=0, description="Seconds that one call of a tool or of `user` may take.")
        max_output_chars: int = Field(
            4000, gt=0, description="Most characters of a tool's answer; the rest is cut off."
        )

        @field_validator("stop_when")
        @classmethod
        def _rules_can_be_read(cls, value: tuple[str, ...]) -> tuple[str, ...]:
            for rule in value:
                stop_rule(rule)
            return value

        @model_validator(mode="after")
        def _turns_fit(self) -> Chat.Config:
            if self.reply is not None and self.user is not None:
                raise ValueError("give either 'reply' or 'user', not both")
            if self.max_turns == 1 and (self.tools or self.reply is not None):
                unused = "tools" if self.tools else "reply"
                raise ValueError(
                    f"with max_turns: 1 the model never sees an answer of '{unused}'; set at least 2 turns"
                )
            names = [tool.name for tool in load_tools(self)]
            if len(set(names)) < len(names):
                raise ValueError(f"two tools have the same name ({', '.join(names)}); rename one of the functions")
            for function in functions_of(self):
                if function.names(SANDBOX) and not function.is_async:
                    raise ValueError(f"{function.where} uses the sandbox, so it must be written with 'async def'")
            return self

    config: Config

    def __init__(self, config: Config, context: DriverContext) -> None:
        super().__init__(config, context)
        self._tools = {tool.name: tool for tool in load_tools(config)}
        self._specs = tuple(tool.spec for tool in self._tools.values())
        self._user = None if config.user is None else config.user.load()
        self._stops = [stop_rule(rule) for rule in config.stop_when]
        several = self._tools or config.user is not None or config.reply is not None
        self._max_turns = config.max_turns or (SEVERAL_TURNS if several else 1)

    @classmethod
    def uses_sandbox(cls, config: Config) -> bool:
        """Return whether a tool or the user's function names `sandbox`."""
        return any(function.names(SANDBOX) for function in functions_of(config))

    def first_call(self, task: Task) -> ModelCall:
        return self._call(self._opening(task))

    def _call(self, history: list[Message]) -> ModelCall:
        return ModelCall(tuple(history), self._specs, tool_choice="auto" if self._specs else "none")

    async def run(self, task: Task, sandbox: Sandbox, session: ModelSession) -> str:
        """It ends as `answer`, `stop` (a stop rule), `finish` (the user's) or `max_turns`."""
        history = self._opening(task)
        state: dict[str, Any] = {}
        for number in range(1, self._max_turns + 1):
            (reply,) = await session.answer(self._call(history))
            history.append(reply.message)
            turn = Turn(number, task, sandbox, state, tuple(history))
            if reply.illegal is not None:
                history.append(Message("user", f"Error: {reply.illegal}"))
            elif reply.message.tool_calls:
                history += await self._run_tools(reply, turn, session)
            else:
                said = await self._answer_of_user(reply, turn, session)
                if said is None:
                    return "stop" if self._fits_stop_rule(reply) else "answer" if self._user is None else "finish"
                history.append(Message("user", said))
            if self._fits_stop_rule(reply):
                return "stop"
        return "max_turns"

    def _opening(self, task: Task) -> list[Message]:
        """Return the messages before the first reply."""
        messages = list(task.messages)
        if self.config.system is not None and not any(message.role == "system" for message in messages):
            messages.insert(0, Message("system", self.config.system))
        if task.instruction or not messages:
            messages.append(Message("user", task.instruction))
        return messages

    def _fits_stop_rule(self, reply: ChatReply) -> bool:
        return any(fits(reply.message.content) for fits in self._stops)

    async def _run_tools(self, reply: ChatReply, turn: Turn, session: ModelSession) -> list[Message]:
        """Run the calls of a reply; return the tools' messages."""
        answers = []
        for call in reply.message.tool_calls:
            outcome = await run_tool(self._tools, call, turn, self.config.tool_timeout_s, self.config.max_output_chars)
            code = 0 if outcome.error is None else 1
            session.observe(
                reply.chunk,
                call.name,
                arguments=outcome.arguments,
                text=outcome.text,
                exit_code=code,
                seconds=outcome.seconds,
            )
            if outcome.error is not None:
                session.mark_error(reply.chunk, outcome.error, outcome.text)
            answers.append(Message("tool", outcome.text, tool_call_id=call.id))
        return answers

    async def _answer_of_user(self, reply: ChatReply, turn: Turn, session: ModelSession) -> str | None:
        """Return the user's next text, None to end; what a function said and its reward are recorded.

        Raises `PluginError` if the function fails or returns something else."""
        if self._user is None:
            return self.config.reply
        said = await ask_user(self._user, turn, reply.message.content, self.config.tool_timeout_s)
        session.observe(
            reply.chunk,
            "user",
            arguments={},
            text=said.text or "",
            exit_code=None,
            seconds=said.seconds,
            reward=said.reward,
        )
        return said.text


def functions_of(config: Chat.Config) -> list[UserFunction]:
    """Return the functions that a configuration names. Raises `ValueError` with a sentence."""
    return [setting.load() for setting in (*config.tools, *((config.user,) if config.user else ()))]


def load_tools(config: Chat.Config) -> list[FunctionTool]:
    """Return the tools of a configuration. Raises `ValueError` with a sentence."""
    return [FunctionTool.of(setting.load()) for setting in config.tools]


def stop_rule(rule: str) -> Callable[[str], object]:
    """Return the test of a stop rule: a text, or a regular expression between slashes. Raises `ValueError`."""
    if not rule:
        raise ValueError("an empty text is in every reply; remove it")
    if len(rule) > 2 and rule.startswith("/") and rule.endswith("/"):
        try:
            return re.compile(rule[1:-1], re.DOTALL).search
        except re.error as error:
            raise ValueError(f"{rule} is no regular expression: {error}") from None
    return lambda text: rule in text
