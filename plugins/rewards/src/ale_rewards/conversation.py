"""What an episode's agent was asked and what it answered, as texts or as messages in the form of chat completions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ale.messages import Message
from ale.session.reply_format import THOUGHTS
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
    with_thoughts: tuple[Message, ...] = ()
    """The completion with each reply's thoughts in its text, as the model writes them and other frameworks' functions
    expect them: between the marks <think> and </think>."""
    whole_reply: str = ""
    """The text of the last reply, its thoughts included."""


def read_conversation(task: Task, trajectory: Trajectory) -> Conversation:
    """Return the conversation of an episode, without a reply if its agent gave none."""
    if not trajectory.turns:
        return Conversation((*task.messages, Message("user", task.instruction)), (), "")
    last = trajectory.turns[-1]
    messages = trajectory.sequences[last.sequence].messages
    first = min(chunk.turn for chunk in trajectory.turns if chunk.sequence == last.sequence)
    cut = {c.turn for c in trajectory.turns if c.sequence == last.sequence and c.finish_reason == "length"}
    whole = tuple(_add_thoughts(messages, first, cut))
    reply, whole_reply = messages[last.turn].content, whole[last.turn - first].content
    return Conversation(messages[:first], messages[first:], reply, whole, whole_reply)


def _add_thoughts(messages: tuple[Message, ...], first: int, cut: set[int]) -> Iterator[Message]:
    """Yield the messages from `first` on with thoughts in the text; a reply that was cut may end inside them."""
    opening, closing = THOUGHTS
    for turn, message in enumerate(messages[first:], first):
        if message.role != "assistant" or not message.reasoning:
            yield message
            continue
        ends = "" if turn in cut and not (message.content or message.tool_calls) else f"\n{closing}\n\n"
        yield replace(message, content=f"{opening}\n{message.reasoning}{ends}{message.content}")
