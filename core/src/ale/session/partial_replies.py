"""What of a reply is certain while it is sampled, so that it can be streamed.

Text is certain if no later token can change where it belongs: not the beginning of a mark of thoughts, of a call or of
a stop text, not half a character, and no white space at the end, which a call after it would take away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

from ale.messages import ReplyPiece
from ale.session.reply_format import ReplyForm
from ale.session.tokenizer import ChatTokenizer
from ale.session.tool_formats.hermes import longest_beginning
from ale.specs.engine import FollowedEngine, GenerateRequest

POLL_S = 0.02
"""Seconds between two questions what has been sampled."""
log = logging.getLogger("ale.session")
Progress = Callable[[ReplyPiece], None]
"""It gets each piece of a reply as soon as it is certain."""


class PartialReply:
    """The reply to one call, as far as it is sampled."""

    def __init__(
        self, tokenizer: ChatTokenizer, form: ReplyForm, stops: Sequence[str], *, calls: bool, within: bool
    ) -> None:
        self._tokenizer, self._form, self._stops = tokenizer, form, stops
        self._calls, self._within = calls, within
        self._thought = self._content = ""

    def extend(self, token_ids: Sequence[int]) -> tuple[str, str]:
        """Return the thoughts and the text that have become certain, where all of these tokens are sampled."""
        text = self._tokenizer.decode(self._tokenizer.split_stop(token_ids)[0]).rstrip("\ufffd")
        thought, content = self._certain(text)
        more = thought.removeprefix(self._thought), content.removeprefix(self._content)
        self._thought, self._content = max(thought, self._thought, key=len), max(content, self._content, key=len)
        return more

    def _certain(self, text: str) -> tuple[str, str]:
        if self._form.thoughts is not None:
            opening, closing = self._form.thoughts
            begun = text.lstrip()
            if opening.startswith(begun):
                return "", ""
            start = self._form.answer_start(text, self._within)
            if start == len(text):  # inside the thoughts, or just behind them
                return self._form.split(cut_before(text, [closing]), self._within)[0], ""
            thought, content = self._form.split(text, self._within)
        else:
            thought, content = "", text
        ends = [at for stop in self._stops if (at := content.find(stop)) >= 0]
        content = content[: min(ends)] if ends else cut_before(content, self._stops)
        if self._calls:
            content = content[: self._form.tool_format.certain_text(content)]
        return thought, content.rstrip()


@asynccontextmanager
async def following(
    engine: FollowedEngine, request: GenerateRequest, partial: PartialReply, index: int, progress: Progress
) -> AsyncIterator[None]:
    """Report the pieces of a reply while the block, which samples it, lasts."""

    async def follow() -> None:
        sampled: tuple[int, ...] = ()
        while True:
            await asyncio.sleep(POLL_S)
            further = engine.sampled_so_far(request, len(sampled)).token_ids
            if further:
                sampled += further
                thought, text = partial.extend(sampled)
                if thought or text:
                    progress(ReplyPiece(index, len(request.token_ids), thought, text))

    task = asyncio.create_task(follow())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("a reply is not streamed while it is sampled: %s", error)


def cut_before(text: str, marks: Iterable[str]) -> str:
    """Return a text without an end with which one of these marks may begin."""
    return text[: len(text) - max((longest_beginning(text, mark) for mark in marks), default=0)]
