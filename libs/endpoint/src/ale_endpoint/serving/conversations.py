"""Gives each call the model session of its conversation.

1. A conversation is identified by its client, its sampling, and its messages up to the first of the user. Its session
   keeps the sampled tokens of earlier turns (`ale.session.recorder`), so that the policy reads its own replies as it
   sampled them, and the engine finds their prefix in its cache. Two conversations that begin alike share a session,
   which distinguishes them message by message.
2. The sessions together keep at most `most_tokens` tokens: those used longest ago are forgotten. A conversation that is
   continued after that is tokenized from its text, as every other server does at each call.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ale.messages import ChatReply, Message, ModelCall
from ale.session.session import RecordedSession, Sessions
from ale.specs.engine import Sampling

MOST_TOKENS = 2_000_000
"""A token is kept with its id, log-probability and version, some 100 bytes: 200 MB in all."""
ANY_NUMBER = 1 << 62
Key = tuple[str, Sampling, tuple[Message, ...]]


@dataclass
class Conversation:
    """A session, what it keeps, and the calls that it is answering."""

    session: RecordedSession
    running: int = 0
    kept: bool = True
    """Whether later calls find it."""
    tokens: int = 0
    """The number of tokens that it keeps."""
    lengths: dict[int, int] = field(default_factory=dict)
    """The number of tokens of each of its sequences."""

    def note(self, replies: Sequence[ChatReply]) -> int:
        """Count the tokens that these replies added, and return their number."""
        before, chunks = self.tokens, self.session.recorder.chunks
        for reply in replies:
            chunk = chunks[reply.chunk]
            self.tokens += chunk.end - self.lengths.get(chunk.sequence, 0)
            self.lengths[chunk.sequence] = chunk.end
        return self.tokens - before


class Conversations:
    """The conversations of all clients."""

    def __init__(self, sessions: Sessions, max_context: int, most_tokens: int = MOST_TOKENS) -> None:
        self._sessions = sessions
        self._max_context = max_context
        self._most_tokens = most_tokens
        self._open: OrderedDict[Key, Conversation] = OrderedDict()
        """The one used last is the last."""
        self.tokens = 0
        """The number of tokens that all of them keep."""
        self._number = 0
        self._boot = secrets.token_hex(4)

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def of(self, owner: str, call: ModelCall, sampling: Sampling) -> Iterator[Conversation]:
        """Keep the conversation that a call belongs to while the block lasts, and longer where there is room."""
        key = (owner, sampling, opening(call.messages))
        conversation = self._open.get(key)
        if conversation is None:
            self._number += 1
            session_id = f"{owner}-{self._boot}-{self._number}"
            session = self._sessions.open(session_id, sampling, max_calls=ANY_NUMBER, max_context=self._max_context)
            conversation = self._open[key] = Conversation(session)
        self._open.move_to_end(key)
        conversation.running += 1
        try:
            yield conversation
        finally:
            conversation.running -= 1
            if conversation.kept and not (conversation.running or conversation.tokens):
                del self._open[key]

    def note(self, conversation: Conversation, replies: Sequence[ChatReply]) -> None:
        """Count the tokens of replies that a conversation has got, and forget others until there is room for them. One
        that is forgotten while it answers calls ends with them."""
        added = conversation.note(replies)
        if conversation.kept:
            self.tokens += added
        while self.tokens > self._most_tokens:
            _, oldest = self._open.popitem(last=False)
            oldest.kept = False
            self.tokens -= oldest.tokens


def opening(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages up to the first of the user, by which a conversation is known."""
    first = next((i for i, message in enumerate(messages) if message.role == "user"), 0)
    return tuple(messages[: first + 1])
