"""Processes a reply before it is recorded: cuts it at a stop text, and decides whether it is an error turn."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace

from ale.messages import ChatReply, Message, ToolSpec
from ale.session.tokenizer import ChatTokenizer
from ale.specs.engine import Generation
from ale.trajectory import ChunkError


def cut_at_stop(
    tokenizer: ChatTokenizer, generation: Generation, stops: Sequence[str], answer_start: Callable[[str], int]
) -> tuple[Generation, str, str | None]:
    """Return the generation up to the first stop text, the text before that, and the stop text that was found.
    Stop texts end answers, which begin at `answer_start`, after the thoughts.

    The tokens that hold the stop text are kept, since the policy sampled them; the tokens after them are dropped.
    """
    sampled = generation.token_ids
    without_end, _ = tokenizer.split_stop(sampled)
    text = tokenizer.decode(without_end)
    begins = answer_start(text) if stops else 0
    found = sorted((at, stop) for stop in stops if (at := text.find(stop, begins)) >= 0)
    if not found:
        return generation, text, None
    at, stop = found[0]
    lengths = range(1, len(without_end) + 1)
    end = bisect_left(lengths, at + len(stop), key=lambda n: len(tokenizer.decode(without_end[:n]))) + 1
    # Incomplete bytes may decode to several characters, so the length can be reached before the stop text is whole.
    while tokenizer.decode(without_end[:end]).find(stop, at) < 0:
        end += 1
    cut = replace(
        generation,
        token_ids=sampled[:end],
        logprobs=generation.logprobs[:end],
        versions=generation.versions[:end],
        finish_reason="stop",
    )
    return cut, text[:at], stop


def unknown_tool(reply: Message, tools: Sequence[ToolSpec]) -> str | None:
    """Return a sentence if a reply calls a tool that the model was not given."""
    names = {tool.name for tool in tools}
    name = next((call.name for call in reply.tool_calls if call.name not in names), None)
    return None if name is None else f"There is no tool '{name}'; the tools are {', '.join(sorted(names)) or 'none'}."


def turn_error(illegal: str | None, *, cut: bool) -> ChunkError | None:
    """Return why a reply is an error turn: it holds an illegal call, or it was cut at its token limit."""
    if illegal is not None:
        return ChunkError("illegal_call", illegal)
    return ChunkError("truncated", "The response was cut at its token limit.") if cut else None


def unsampled_error(reply: ChatReply) -> ChunkError | None:
    """Return why a reply that the policy did not sample is an error turn."""
    return turn_error(reply.illegal, cut=reply.finish_reason in ("length", "content_filter"))
