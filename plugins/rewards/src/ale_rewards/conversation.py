"""What an episode's agent was asked and what it answered, as texts or as messages in the form of chat completions."""

from __future__ import annotations

from dataclasses import dataclass

from ale.messages import Message
from ale.task import Task
from ale.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages of the context in which an episode's last reply was given; side calls do not count."""

    prompt: tuple[Message, ...]
    """The messages before the first reply."""
    completion: tuple[Message, ...]
    """All messages from the first reply on, with the answers of tools and of the user; empty without a reply."""
    reply: str
    """The text of the last reply, without its thoughts; empty without a reply."""


def read_conversation(task: Task, trajectory: Trajectory) -> Conversation:
    """Return the conversation of an episode, without a reply if its agent gave none."""
    if not trajectory.turns:
        return Conversation((*task.messages, Message("user", task.instruction)), (), "")
    last = trajectory.turns[-1]
    messages = trajectory.sequences[last.sequence].messages
    first = min(chunk.turn for chunk in trajectory.turns if chunk.sequence == last.sequence)
    return Conversation(messages[:first], messages[first:], messages[last.turn].content)
