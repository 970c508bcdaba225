"""A demonstrator that answers with the completion of the task's row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ale.errors import TaskError
from ale.messages import Message, ToolSpec
from ale.specs.start import Reply
from ale_data.chat_rows import read_messages


class CompletionDemonstrator:
    """It gives the assistant's messages one after the other, then hands over to the policy. What tools answered in the
    data is not used: in an episode they are really called."""

    def __init__(self, replies: Sequence[Message]) -> None:
        self._replies = iter(replies)

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Reply | None:
        reply = next(self._replies, None)
        return None if reply is None else Reply(reply)


def read_completion(value: Any) -> tuple[Message, ...]:
    """Return the assistant's messages of a completion: text, or a list of messages; none if it is empty.

    Raises `ValueError` with a sentence without a full stop."""
    if isinstance(value, list):
        return tuple(message for message in read_messages(value) if message.role == "assistant")
    if value is not None and not isinstance(value, str):
        raise ValueError(f"it must be text or a list of messages, not {value!r:.60}")
    return (Message("assistant", value),) if value else ()


def make_demonstrator(task_id: str, completion: Any) -> CompletionDemonstrator | None:
    """Return a demonstrator for a task, or None if its completion is empty. Raises `TaskError` if it is wrong."""
    try:
        replies = read_completion(completion)
    except ValueError as error:
        raise TaskError(f"The completion of the task {task_id} cannot be read: {error}.") from None
    return CompletionDemonstrator(replies) if replies else None
