"""What becomes of a reply before it is recorded: where a stop text ends it, and why it is an error turn."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from ale.endpoint.tokenizer import ChatTokenizer
from ale.messages import ChatReply, Message, ToolSpec
from ale.specs.engine import Generation
from ale.trajectory import ChunkError


def cut_at_stop(
    tokenizer: ChatTokenizer, generation: Generation, stops: Sequence[str]
) -> tuple[Generation, str, str | None]:
    """What was sampled up to the first stop text, the text before that, and which one it was.

    The tokens that hold the stop text are kept, since the policy sampled them; those after them are nobody's.
    """
    sampled = generation.token_ids
    spoken = sampled[:-1] if sampled and sampled[-1] in tokenizer.stop_token_ids else sampled
    text = tokenizer.decode(spoken)
    found = sorted((text.find(stop), stop) for stop in stops if stop in text)
    if not found:
        return generation, text, None
    at, stop = found[0]
    lengths = range(1, len(spoken) + 1)
    end = bisect_left(lengths, at + len(stop), key=lambda n: len(tokenizer.decode(spoken[:n]))) + 1
    while stop not in tokenizer.decode(spoken[:end]):  # half a character counts as one or several
        end += 1
    cut = replace(
        generation, token_ids=sampled[:end], logprobs=generation.logprobs[:end], versions=generation.versions[:end],
        finish_reason="stop",
    )  # fmt: skip
    return cut, text[:at], stop


def unknown_tool(reply: Message, tools: Sequence[ToolSpec]) -> str | None:
    """A sentence where a reply calls a tool that the model was not told of."""
    names = {tool.name for tool in tools}
    name = next((call.name for call in reply.tool_calls if call.name not in names), None)
    return None if name is None else f"There is no tool '{name}'; the tools are {', '.join(sorted(names)) or 'none'}."


def turn_error(illegal: str | None, *, cut: bool) -> ChunkError | None:
    """Why a reply is an error turn: a call that is none, or its end at a limit."""
    if illegal is not None:
        return ChunkError("illegal_call", illegal)
    return ChunkError("truncated", "The response was cut at its token limit.") if cut else None


def given_error(reply: ChatReply) -> ChunkError | None:
    """Why a reply that the policy did not sample is an error turn."""
    return turn_error(reply.illegal, cut=reply.finish_reason == "length")
