"""The user of a conversation, if it is a Python function: it reads each reply and says what comes next.

The function gets the arguments that it names: `messages` (all so far, as in chat completions), `completion` (the last
reply's text), `turn` (from 1), `state` (a dict that lasts as long as the episode, for the tools too), `task`,
`metadata`, the columns of the task's row, and `sandbox`.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

from ale.errors import PluginError
from ale.messages import Message
from ale.registry.user_functions import FunctionFailed, UserFunction, call_function, pick_arguments
from ale.registry.validation import format_value
from ale.specs.sandbox import Sandbox
from ale.task import Task

SANDBOX = "sandbox"


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of an episode, up to the model's reply."""

    number: int
    task: Task
    sandbox: Sandbox
    state: dict[str, Any]
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class UserTurn:
    """What the user said (None: nothing more) and the reward for the reply before it."""

    text: str | None
    reward: float | None
    seconds: float


async def ask_user(function: UserFunction, turn: Turn, completion: str, timeout_s: float) -> UserTurn:
    """Call the user's function. Raises `PluginError` if it fails, `ConfigError` if nothing provides a parameter."""
    task = turn.task
    offered = {
        **task.metadata,
        "messages": [message.to_openai() for message in turn.messages],
        "completion": completion,
        "turn": turn.number,
        "state": turn.state,
        "task": task,
        "metadata": dict(task.metadata),
    }
    if function.names(SANDBOX):
        offered[SANDBOX] = turn.sandbox
    started = time.monotonic()
    try:
        said: Any = await call_function(function, pick_arguments(function, offered), timeout_s)
    except FunctionFailed as error:
        raise PluginError(f"The user of the conversation failed: {error}") from error
    text: Any
    reward: Any
    text, reward = said if isinstance(said, tuple) and len(said) == 2 else (said, None)
    reward = reward.tolist() if hasattr(reward, "tolist") else reward  # a scalar of numpy or torch
    number = isinstance(reward, int | float) and math.isfinite(reward)
    if not (text is None or isinstance(text, str)) or not (reward is None or number):
        raise PluginError(
            f"The user of the conversation, {function.where}, returned {format_value(said)}; it must return the next "
            "text, or None to end, or a pair of that and a finite number, the reward."
        )
    return UserTurn(text, None if reward is None else float(reward), time.monotonic() - started)
