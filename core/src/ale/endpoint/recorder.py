"""The recorder keeps each conversation exact to the token.

1. A *line* is one context: the token ids that the model saw and sampled, in order. Each reply ends a known prefix
   of messages: a *node* of the session's prefix tree remembers which line stands for it, and how long the line was then.
2. A request whose messages extend such a prefix reuses the line's tokens as they are. Only what is new is
   tokenized: the text that the template puts after the last reply. The sampled text itself is never tokenized again.
3. An echo of a reply is known by what it says (`gist`): white space around its text, the ids of its calls and the form of
   their arguments' JSON may be others, and its thoughts may be missing. What the model sampled is what stays in the line,
   thoughts too. Such a request counts as a changed echo.
4. A request that extends no known prefix (first call, rewritten history) starts a new line; one that extends the
   *middle* of a line branches: the new line copies the tokens up to there. A chunk stays with the line that
   sampled it, so each sampled token is trained on once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from ale.endpoint.reply_form import ReplyForm
from ale.endpoint.tokenizer import ChatTokenizer
from ale.messages import Message, ToolCall, ToolSpec
from ale.specs.engine import Generation
from ale.trajectory import Chunk, ChunkError, FinishReason, Sequence

NOTED_CHARS = 2000


@dataclass(slots=True)
class _Line:
    seen: tuple[int, ...] = ()
    """The last prompt, which holds all that was before it, ..."""
    said: tuple[int, ...] = ()
    """... and the reply to it: put together with the next prompt, so that a turn copies the context once."""
    tools: tuple[ToolSpec, ...] = ()
    messages: tuple[Message, ...] = ()

    def __len__(self) -> int:
        return len(self.seen) + len(self.said)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.seen + self.said

    def until(self, length: int, suffix: tuple[int, ...]) -> tuple[int, ...]:
        """The first `length` tokens, and the suffix."""
        return self.seen + (self.said + suffix) if length == len(self) else self.token_ids[:length] + suffix


@dataclass(frozen=True, slots=True)
class _Known:
    """A prefix that ended in a reply: where its tokens stand, and whether its stop token was sampled."""

    line: int
    length: int
    stopped: bool
    reply: Message


@dataclass(slots=True)
class _Node:
    """A prefix of messages; `after` leads on, by what the next message says."""

    after: dict[Message, _Node] = field(default_factory=dict)
    known: _Known | None = None

    def to(self, message: Message) -> _Node:
        """The prefix with one more message, made where it is not there."""
        return self.after.setdefault(gist(message), _Node())


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request rendered to tokens: `token_ids` is what the engine is given."""

    token_ids: tuple[int, ...]
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    node: _Node
    """The longest prefix of the messages that the tree has, ..."""
    depth: int
    """... and how many messages that is."""
    known: _Known | None = None
    changed: bool = False
    """Whether it brought the last reply back in another form."""

    @property
    def reused(self) -> int:
        """Leading tokens taken over from the line instead of being tokenized."""
        return 0 if self.known is None else self.known.length


class Recorder:
    """Records the conversations of one session."""

    def __init__(self, tokenizer: ChatTokenizer, form: ReplyForm | None = None) -> None:
        self._tokenizer = tokenizer
        self._form = form or ReplyForm()
        self._lines: list[_Line] = []
        self._trees: dict[tuple[str, ...], _Node] = {}
        """By the names of the tools: what tells two sets of tools apart."""
        self._last: tuple[_Node, tuple[Message, ...], _Node] | None = None
        """The tree, the messages and the node of what was recorded last."""
        self._chunks: list[Chunk] = []
        self.changed_echoes = 0
        """Recorded calls whose request brought the last reply back in another form."""

    def prompt(self, messages: Seq[Message], tools: Seq[ToolSpec] = ()) -> Prompt:
        """Token ids for the next reply to `messages`. Nothing is recorded."""
        history, tools = tuple(messages), tuple(tools)
        root = self._trees.get(_names(tools)) or _Node()
        for node, depth in self._starts(history, root):
            node, depth, prefixes = _walk(history, node, depth)
            for n, known in reversed(prefixes):
                suffix = self._suffix(history, n, tools, known.stopped)
                if suffix is not None:
                    ids = self._lines[known.line].until(known.length, tuple(suffix))
                    changed = history[n - 1] != known.reply
                    return Prompt(ids, _as_said(history, prefixes), tools, node, depth, known, changed)
        shown, told = self._form.shown(self._tokenizer, history, tools)
        text = self._tokenizer.render(shown, told, prompt=True)
        return Prompt(tuple(self._tokenizer.encode(text)), history, tools, node, depth)

    def _starts(self, history: tuple[Message, ...], root: _Node) -> Iterator[tuple[_Node, int]]:
        """Prefixes from where to look on: what was recorded last, where the history begins with just that, and none.

        The first is found by comparing, which costs a long conversation far less than its way down the tree.
        """
        if self._last is not None:
            of, messages, node = self._last
            if of is root and history[: len(messages)] == messages:
                yield node, len(messages)
        yield root, 0

    def _suffix(
        self, history: tuple[Message, ...], n: int, tools: tuple[ToolSpec, ...], stopped: bool
    ) -> list[int] | None:
        """Tokens between the reply `history[n - 1]` and the next one; None where the template rewrites what went before.

        Templates that take thoughts out of older replies are shown none: the line keeps those that were sampled.
        """
        reply = history[n - 1]
        if reply.reasoning:
            history = (*history[: n - 1], replace(reply, reasoning=""), *history[n:])
        shown, told = self._form.shown(self._tokenizer, history, tools)
        text = self._tokenizer.continuation(shown, n + len(shown) - len(history), told)
        if text is None:
            return None
        return self._tokenizer.encode(text if stopped else self._tokenizer.stop_text + text)

    def begins_within(self, prompt: Prompt) -> bool:
        """Whether the model's reply to this begins inside its thoughts."""
        return self._form.begins_within(self._tokenizer.decode(prompt.token_ids[-16:]))

    def add_sampled(self, prompt: Prompt, generation: Generation, reply: Message, error: ChunkError | None) -> Chunk:
        """Record what the engine sampled for `prompt`, read as `reply`."""
        stop = self._tokenizer.stop_token_ids
        stopped = bool(generation.token_ids) and generation.token_ids[-1] in stop
        return self._add(
            prompt, generation.token_ids, reply, stopped, generation.finish_reason,
            generation.logprobs, generation.versions, error, sampled=True,
        )  # fmt: skip

    def add_given(
        self, prompt: Prompt, reply: Message, token_ids: tuple[int, ...] | None = None, error: ChunkError | None = None,
        finish_reason: FinishReason = "stop",
    ) -> Chunk:  # fmt: skip
        """Record a reply that the policy did not sample (a demonstrator's, an expert's): as the model would have written it,
        or in these very tokens. One that was cut (`length`) gets no stop token."""
        if token_ids is None:
            text = self._form.write(reply, within=self.begins_within(prompt))
            stop = self._tokenizer.stop_token_ids[: finish_reason != "length"]
            token_ids = (*self._tokenizer.encode(text), *stop)
        stopped = bool(token_ids) and token_ids[-1] in self._tokenizer.stop_token_ids
        return self._add(prompt, token_ids, reply, stopped, finish_reason, (), (), error, sampled=False)

    def _add(
        self, prompt: Prompt, token_ids: tuple[int, ...], reply: Message, stopped: bool, finish: FinishReason,
        logprobs: tuple[float, ...], versions: tuple[int, ...], error: ChunkError | None, *, sampled: bool,
    ) -> Chunk:  # fmt: skip
        index = self._line_for(prompt)
        line = self._lines[index]
        start = len(prompt.token_ids)
        line.seen, line.said = prompt.token_ids, token_ids
        line.messages = (*prompt.messages, reply)
        end = len(line)
        # Another call may have added a tree, or to it, since this prompt was made.
        node = prompt.node if prompt.depth else self._trees.setdefault(_names(prompt.tools), _Node())
        for message in line.messages[prompt.depth :]:
            node = node.to(message)
        node.known = _Known(index, end, stopped, reply)
        self._last = (self._trees[_names(prompt.tools)], line.messages, node)
        self.changed_echoes += prompt.changed
        chunk = Chunk(
            len(self._chunks), index, start, end, logprobs, versions, finish, sampled, error, turn=len(prompt.messages)
        )
        self._chunks.append(chunk)
        return chunk

    def note(self, chunk: int, asked: Mapping[str, Any]) -> None:
        """Keep what the request for this chunk asked for beside messages and tools; large values by their length alone."""
        if asked:
            kept = {
                key: value if len(text := json.dumps(value)) <= NOTED_CHARS else f"({len(text)} characters)"
                for key, value in asked.items()
            }
            self._chunks[chunk] = replace(self._chunks[chunk], asked=kept)

    def _line_for(self, prompt: Prompt) -> int:
        """The line that ends with `prompt`: the old one where the prompt extends its end, else a new one."""
        known = prompt.known
        if known is not None and len(self._lines[known.line]) == known.length:
            return known.line
        self._lines.append(_Line(tools=prompt.tools))
        return len(self._lines) - 1

    def mark_error(self, chunk: int, error: ChunkError) -> None:
        """Attach an error to a recorded chunk; the first one stays."""
        if self._chunks[chunk].error is None:
            self._chunks[chunk] = replace(self._chunks[chunk], error=error)

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        """Every line so far."""
        return tuple(Sequence(line.token_ids, line.messages, line.tools) for line in self._lines)

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """Every chunk so far, in the order in which they were made."""
        return tuple(self._chunks)


def _walk(history: tuple[Message, ...], node: _Node, depth: int) -> tuple[_Node, int, list[tuple[int, _Known]]]:
    """From the node of the first `depth` messages as far down as the history leads, and the known prefixes on the way."""
    prefixes = [] if node.known is None else [(depth, node.known)]
    for message in history[depth:]:
        below = node.after.get(gist(message))
        if below is None:
            break
        node, depth = below, depth + 1
        if node.known is not None:
            prefixes.append((depth, node.known))
    return node, depth, prefixes


def _as_said(history: tuple[Message, ...], known: Seq[tuple[int, _Known]]) -> tuple[Message, ...]:
    """The messages with the model's own replies as it gave them, where the agent brought them back in another form."""
    changed = {n - 1: reply.reply for n, reply in known if history[n - 1] != reply.reply}
    return tuple(changed.get(i, message) for i, message in enumerate(history)) if changed else history


def gist(message: Message) -> Message:
    """What a message says: two that have the same are taken for each other where the model's own are looked for."""
    if message.role != "assistant":
        return message
    content = message.content.strip()
    if not message.tool_calls and not message.reasoning and content is message.content:
        return message
    calls = tuple(ToolCall("", call.name, _compact(call.arguments)) for call in message.tool_calls)
    return Message("assistant", content, calls)


@lru_cache(maxsize=4096)
def _compact(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


def _names(tools: Seq[ToolSpec]) -> tuple[str, ...]:
    return tuple(tool.name for tool in tools)
