"""A start that never hands over: a demonstration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ale.messages import Message
from ale.specs.start import Demonstration

CONTEXT: Any = None
"""A demonstration needs nothing of its rollout."""


async def test_each_try_has_a_responder_of_its_own() -> None:
    """A responder keeps count of one conversation: a rejected demonstration that is made again begins anew."""

    def demonstrator() -> Any:
        replies = iter([Message("assistant", "first"), Message("assistant", "second")])

        async def respond(messages: Sequence[Message], tools: Sequence[Any]) -> Message:
            return next(replies)

        return respond

    start = Demonstration(demonstrator)
    for _ in range(2):
        opening = start.open(CONTEXT)
        said: list[Any] = [await opening.respond([], ()) for _ in range(2)]
        assert [message.content for message in said] == ["first", "second"]


async def test_without_a_demonstrator_the_policy_answers() -> None:
    assert await Demonstration(lambda: None).open(CONTEXT).respond([], ()) is None
