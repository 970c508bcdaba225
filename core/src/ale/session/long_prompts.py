"""Shortens a prompt that leaves no room for a reply: the longest of the user's messages lose their beginnings.

What a question ends with is usually what it asks, so the end is kept, as other frameworks do that truncate on the left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ale.messages import Message
from ale.session.tokenizer import ChatTokenizer

TRIES = 8


def shorten_messages(
    messages: tuple[Message, ...],
    tokenizer: ChatTokenizer,
    most: int,
    count: Callable[[tuple[Message, ...]], int],
) -> tuple[Message, ...]:
    """Return the messages so that their prompt has at most `most` tokens, if the user's messages have so many to lose.
    `count` returns the number of tokens in the prompt of messages."""
    shown = list(messages)
    users = [i for i, message in enumerate(messages) if message.role == "user"]
    for i in sorted(users, key=lambda i: len(messages[i].content), reverse=True):
        kept = len(tokenizer.encode(messages[i].content))
        for _ in range(TRIES):
            over = count(tuple(shown)) - most
            if over <= 0:
                return tuple(shown)
            if not kept:
                break
            kept = max(0, kept - over)
            shown[i] = replace(messages[i], content=tokenizer.last_part(messages[i].content, kept))
    return tuple(shown)
