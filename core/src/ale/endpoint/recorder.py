"""The recorder keeps each conversation exact to the token.

1. A *line* is one context: the token ids that the model saw and sampled, in order. Each reply ends a known prefix
   of messages; the recorder remembers which line stands for it, and how long the line was then.
2. A request whose messages extend such a prefix reuses the line's tokens as they are. Only what is new is
   tokenized: the text that the template puts after the last reply. The sampled text itself is never tokenized again.
3. An echo of a reply is known by what it says: white space around its text, the ids of its calls and the form of their
   arguments' JSON may be others (`changed_echoes` counts them). What the model sampled is what stays in the line.
4. A request that extends no known prefix (first call, rewritten history) starts a new line; one that extends the
   *middle* of a line branches: the new line copies the tokens up to there. A chunk stays with the line that
   sampled it, so each sampled token is trained on once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

from ale.endpoint.tokenizer import ChatTokenizer
from ale.messages import Message, ToolCall, ToolSpec
from ale.specs.engine import Generation
from ale.trajectory import Chunk, ChunkError, FinishReason, Sequence

_Key = tuple[tuple[str, ...], tuple[Message, ...]]
"""Names of the tools, and the messages by what they say (`gist`)."""


@dataclass(slots=True)
class _Line:
    token_ids: list[int] = field(default_factory=list)
    tools: tuple[ToolSpec, ...] = ()
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class _Known:
    """A prefix that ended in a reply: where its tokens stand, and whether its stop token was sampled."""

    line: int
    length: int
    stopped: bool
    reply: Message


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request rendered to tokens: `token_ids` is what the engine is given."""

    token_ids: tuple[int, ...]
    messages: tuple[Message, ...]
    said: tuple[Message, ...]
    """Their gists."""
    tools: tuple[ToolSpec, ...]
    known: _Known | None
    reused: int
    """Leading tokens taken over from the line instead of being tokenized."""


class Recorder:
    """Records the conversations of one session."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._lines: list[_Line] = []
        self._known: dict[_Key, _Known] = {}
        self._chunks: list[Chunk] = []
        self.changed_echoes = 0
        """Requests that brought the last reply back in another form."""

    def prompt(self, messages: Seq[Message], tools: Seq[ToolSpec] = ()) -> Prompt:
        """Token ids for the next reply to `messages`."""
        history, names = tuple(messages), _names(tools)
        said = tuple(map(gist, history))
        for n in range(len(history), 0, -1):
            if history[n - 1].role != "assistant":
                continue
            known = self._known.get((names, said[:n]))
            if known is None:
                continue
            suffix = self._suffix(history, n, tools, known.stopped)
            if suffix is not None:
                self.changed_echoes += history[n - 1] != known.reply
                head = self._lines[known.line].token_ids[: known.length]
                return Prompt((*head, *suffix), history, said, tuple(tools), known, known.length)
        text = self._tokenizer.render(history, tools, prompt=True)
        return Prompt(tuple(self._tokenizer.encode(text)), history, said, tuple(tools), None, 0)

    def _suffix(self, history: tuple[Message, ...], n: int, tools: Seq[ToolSpec], stopped: bool) -> list[int] | None:
        """Tokens between the reply `history[n - 1]` and the next one; None where the template rewrites what went before."""
        text = self._tokenizer.continuation(history, n, tools)
        if text is None:
            return None
        return self._tokenizer.encode(text if stopped else self._tokenizer.stop_text + text)

    def add_sampled(self, prompt: Prompt, generation: Generation, reply: Message, error: ChunkError | None) -> Chunk:
        """Record what the engine sampled for `prompt`, read as `reply`."""
        stop = self._tokenizer.stop_token_ids
        stopped = bool(generation.token_ids) and generation.token_ids[-1] in stop
        return self._add(
            prompt, generation.token_ids, reply, stopped, generation.finish_reason,
            generation.logprobs, generation.versions, error, sampled=True,
        )  # fmt: skip

    def add_given(self, prompt: Prompt, text: str, reply: Message, error: ChunkError | None = None) -> Chunk:
        """Record a reply that the policy did not sample (a demonstrator's, an expert's)."""
        stop = self._tokenizer.stop_token_ids[:1]
        token_ids = (*self._tokenizer.encode(text), *stop)
        return self._add(prompt, token_ids, reply, True, "stop", (), (), error, sampled=False)

    def _add(
        self, prompt: Prompt, token_ids: tuple[int, ...], reply: Message, stopped: bool, finish: FinishReason,
        logprobs: tuple[float, ...], versions: tuple[int, ...], error: ChunkError | None, *, sampled: bool,
    ) -> Chunk:  # fmt: skip
        index = self._line_for(prompt)
        line = self._lines[index]
        start = len(line.token_ids)
        line.token_ids.extend(token_ids)
        line.messages = (*prompt.messages, reply)
        end = len(line.token_ids)
        self._known[(_names(prompt.tools), (*prompt.said, gist(reply)))] = _Known(index, end, stopped, reply)
        chunk = Chunk(len(self._chunks), index, start, end, logprobs, versions, finish, sampled, error)
        self._chunks.append(chunk)
        return chunk

    def _line_for(self, prompt: Prompt) -> int:
        """The line that ends with `prompt`: the old one where the prompt extends its end, else a new one."""
        known = prompt.known
        if known is not None and len(self._lines[known.line].token_ids) == known.length:
            line = self._lines[known.line]
            line.token_ids.extend(prompt.token_ids[known.length :])
            return known.line
        self._lines.append(_Line(list(prompt.token_ids), prompt.tools))
        return len(self._lines) - 1

    def mark_error(self, chunk: int, error: ChunkError) -> None:
        """Attach an error to a recorded chunk; the first one stays."""
        if self._chunks[chunk].error is None:
            self._chunks[chunk] = replace(self._chunks[chunk], error=error)

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        """Every line so far."""
        return tuple(Sequence(tuple(line.token_ids), line.messages, line.tools) for line in self._lines)

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """Every chunk so far, in the order in which they were made."""
        return tuple(self._chunks)


def gist(message: Message) -> Message:
    """What a message says: two that have the same are taken for each other where the model's own are looked for."""
    if message.role != "assistant":
        return message
    calls = tuple(ToolCall("", call.name, _compact(call.arguments)) for call in message.tool_calls)
    return Message("assistant", message.content.strip(), calls)


def _compact(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


def _names(tools: Seq[ToolSpec]) -> tuple[str, ...]:
    """What tells two sets of tools apart."""
    return tuple(tool.name for tool in tools)
