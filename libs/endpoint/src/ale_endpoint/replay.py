"""Answers requests from a recording. An answer is found by the content of its request, not by its place.

Two requests are the same where the model's name, the names of the tools and the `canonical_form` of each message are
the same; ids of tool calls and sampling settings are not compared. Several answers to one request are given in their
recorded order, then the last one again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ale.errors import RequestRefused
from ale.messages import Answer, ChatReply, Message, ModelCall
from ale.session.recorder import canonical_form
from ale_endpoint.recording import RecordedCall

SOURCE = "replay"
SHOWN = 60
"""How many characters are shown around the place where two texts differ."""


@dataclass(frozen=True, slots=True)
class CallContent:
    """The parts of a request by which requests are compared."""

    model: str
    tools: tuple[str, ...]
    messages: tuple[Message, ...]


def content_of_call(call: ModelCall) -> CallContent:
    """The parts of a request that decide whether two requests are the same."""
    messages = (replace(canonical_form(message), tool_call_id=None) for message in call.messages)
    return CallContent(call.model, tuple(tool.name for tool in call.tools), tuple(messages))


class Replay:
    """The answered calls of a recording."""

    def __init__(self, calls: Iterable[RecordedCall]) -> None:
        self._found: dict[CallContent, list[ChatReply]] = {}
        self._of: dict[CallContent, RecordedCall] = {}
        """The first call with each content."""
        self._given: dict[CallContent, int] = {}
        for call in calls:
            if call.answer is not None:
                key = content_of_call(call.request)
                self._found.setdefault(key, []).extend(call.answer.replies)
                self._of.setdefault(key, call)
        self.models = tuple(sorted({key.model for key in self._found}))

    def __len__(self) -> int:
        """How many different requests there are."""
        return len(self._found)

    def answer(self, call: ModelCall) -> Answer | None:
        """Give the recorded answer to a request; None where the recording has none."""
        key = content_of_call(call)
        replies = self._found.get(key)
        if replies is None:
            return None
        first = self._given.get(key, 0)
        self._given[key] = first + call.n
        return Answer(tuple(replies[min(first + i, len(replies) - 1)] for i in range(call.n)), SOURCE)

    def refusal(self, call: ModelCall) -> RequestRefused:
        """Explain why a request has no answer: the nearest recorded request, and where the two differ."""
        key = content_of_call(call)
        if not self._found:
            return _make_refusal("The recording holds no answered call.")
        near = max(self._found, key=lambda other: _nearness(key, other))
        of = self._of[near]
        named = f"the nearest is call {of.number} of session {of.session}"
        alike = _alike(key, near)
        if alike < max(len(key.messages), len(near.messages)):
            return _make_refusal(
                f"This request is not in the recording; {named}. {_describe_difference(key, near, alike)}"
            )
        if key.tools != near.tools:
            return _make_refusal(
                f"This request is not in the recording; {named}. Its messages are the same, but it has the tools "
                f"{_join_names(near.tools)} and this request has {_join_names(key.tools)}."
            )
        return _make_refusal(
            f"This request is not in the recording; {named}. Messages and tools are the same, but it asks for the "
            f"model '{near.model}' and this request for '{key.model}'."
        )


def _make_refusal(sentence: str) -> RequestRefused:
    return RequestRefused(sentence, 404, "not_recorded")


def _alike(one: CallContent, other: CallContent) -> int:
    """How many messages are the same, from the first on."""
    pairs = zip(one.messages, other.messages, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one.messages), len(other.messages)))


def _nearness(one: CallContent, other: CallContent) -> tuple[int, bool, bool, int]:
    alike = _alike(one, other)
    return alike, one.tools == other.tools, one.model == other.model, -abs(len(one.messages) - len(other.messages))


def _describe_difference(asked: CallContent, near: CallContent, alike: int) -> str:
    """Describe how two conversations differ after `alike` equal messages."""
    same = f"The first {alike} messages are the same; then" if alike else "They differ from the first message on:"
    here = asked.messages[alike] if alike < len(asked.messages) else None
    there = near.messages[alike] if alike < len(near.messages) else None
    if here is None or there is None:
        more, which = (there, "the recorded one") if here is None else (here, "this request")
        assert more is not None
        return f"{same} {which} goes on with a message of the role {more.role}, and the other ends."
    if here.role != there.role:
        return f"{same} message {alike} is of the role {here.role}, and recorded is {there.role}."
    one, other = _text(here), _text(there)
    shared = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    excerpts = [repr(text[max(0, shared - SHOWN // 2) : shared + SHOWN]) for text in (one, other)]
    return f"{same} message {alike} ({here.role}) has {excerpts[0]} where {excerpts[1]} is recorded."


def _text(message: Message) -> str:
    return message.content + "".join(f" {call.name}({call.arguments})" for call in message.tool_calls)


def _join_names(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "none"
