"""The recorder keeps each conversation exact to the token.

1. A *line* is one context: the token ids that the model saw and sampled, in order. Each reply ends a known prefix of
   messages: a *node* of the session's prefix tree stores the line that holds it and the line's length then.
2. A request whose messages extend such a prefix reuses the line's tokens unchanged. Only the new part is tokenized: the
   text that the template puts after the last reply. The sampled text itself is never tokenized again.
3. An agent sends the model's replies back in its history, sometimes changed. Such an echo is recognized by its
   `canonical_form`: white space around its text, the ids of its calls and the form of their arguments' JSON may differ,
   and its thoughts may be missing. The line keeps what the model sampled, thoughts too, and counts a changed echo.
4. A request that extends no known prefix (first call, rewritten history) starts a new line; so does one after which the
   chat template writes earlier turns in another way, and these are counted. One that extends the *middle* of a line
   branches: the new line copies the tokens up to there. A chunk stays with the line that sampled it, so each sampled
   token is trained on once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from ale.messages import Message, ToolCall, ToolSpec
from ale.session.reply_format import ReplyForm
from ale.session.tokenizer import ChatTokenizer
from ale.specs.engine import Generation
from ale.trajectory import Chunk, ChunkError, FinishReason, Sequence

NOTED_CHARS = 2000
PREFIXES_TRIED = 4
"""Where a template rewrites each turn, a search through all of a long conversation would find nothing."""


@dataclass(slots=True)
class _Context:
    prompt_ids: tuple[int, ...] = ()
    """The last prompt, which includes everything before it."""
    reply_ids: tuple[int, ...] = ()
    """The reply to that prompt. The two are joined with the next prompt, so that each turn copies the context once."""
    tools: tuple[ToolSpec, ...] = ()
    messages: tuple[Message, ...] = ()

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.reply_ids)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.prompt_ids + self.reply_ids

    def until(self, length: int, suffix: tuple[int, ...]) -> tuple[int, ...]:
        """Return the first `length` tokens, followed by the suffix."""
        return self.prompt_ids + (self.reply_ids + suffix) if length == len(self) else self.token_ids[:length] + suffix


@dataclass(frozen=True, slots=True)
class _KnownPrefix:
    """A prefix that ended in a reply: the line and length of its tokens, and the reply and its own tokens."""

    line: int
    length: int
    token_ids: tuple[int, ...]
    reply: Message


@dataclass(slots=True)
class _Node:
    """A prefix of messages; `after` maps the canonical form of the next message to the longer prefix."""

    after: dict[Message, _Node] = field(default_factory=dict)
    known: _KnownPrefix | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request rendered to tokens: the engine gets `token_ids`."""

    token_ids: tuple[int, ...]
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    node: _Node
    """The node of the longest prefix of the messages that is in the tree."""
    depth: int
    """The number of messages in that prefix."""
    known: _KnownPrefix | None = None
    """The prefix whose tokens were copied from the line instead of being tokenized."""
    changed: bool = False
    """Whether the request sent the last reply back in a changed form."""
    rewritten: bool = False
    """Whether the template writes what the model saw and sampled in another way once this request follows."""


class Recorder:
    """It records the conversations of one session."""

    def __init__(self, tokenizer: ChatTokenizer, form: ReplyForm | None = None) -> None:
        self._form = form or ReplyForm()
        self._tokenizer = tokenizer.parsing if self._form.control_tokens == "parsed" else tokenizer
        self._lines: list[_Context] = []
        self._trees: dict[tuple[str, ...], _Node] = {}
        """One tree for each list of tool names: sets of tools are distinguished by their names."""
        self._last: tuple[_Node, tuple[Message, ...], _Node] | None = None
        """The tree, the messages and the node of the newest record."""
        self._chunks: list[Chunk] = []
        self.changed_echoes = 0
        """The number of recorded calls whose request sent the last reply back in a changed form."""
        self.template_rewrites = 0
        """The number of recorded calls before which the template rewrote what the model saw and sampled."""

    def prompt(self, messages: Seq[Message], tools: Seq[ToolSpec] = ()) -> Prompt:
        """Return the token ids for the next reply to `messages`. Nothing is recorded."""
        history, tools = tuple(messages), tuple(tools)
        root, rewritten = self._trees.get(_names(tools)) or _Node(), set[int]()
        for node, depth in self._starts(history, root):
            node, depth, prefixes = _follow_history(history, node, depth)
            own = _restore_own_replies(history, prefixes)
            for n, known in reversed(prefixes[-PREFIXES_TRIED:]):
                if n in rewritten:
                    continue
                suffix = self._suffix(own, n, tools, known)
                if suffix is not None:
                    ids = self._lines[known.line].until(known.length, tuple(suffix))
                    changed = history[n - 1] != known.reply
                    return Prompt(ids, own, tools, node, depth, known, changed, bool(rewritten))
                rewritten.add(n)
        shown_messages, shown_tools = self._form.for_template(self._tokenizer, own, tools)
        text = self._tokenizer.render(shown_messages, shown_tools, prompt=True)
        return Prompt(tuple(self._tokenizer.encode(text)), own, tools, node, depth, rewritten=bool(rewritten))

    def _starts(self, history: tuple[Message, ...], root: _Node) -> Iterator[tuple[_Node, int]]:
        """Yield prefixes to search from: the newest record, if the history begins with it, then the empty prefix.

        The first is found by comparison, which for a long conversation is far cheaper than a search through the tree.
        """
        if self._last is not None:
            of, messages, node = self._last
            if of is root and history[: len(messages)] == messages:
                yield node, len(messages)
        yield root, 0

    def _suffix(
        self, history: tuple[Message, ...], n: int, tools: tuple[ToolSpec, ...], known: _KnownPrefix
    ) -> list[int] | None:
        """Return the tokens between the reply `history[n - 1]`, the end of a known prefix, and the next; None if the
        template rewrites earlier text."""
        shown_messages, shown_tools = self._form.for_template(self._tokenizer, history, tools)
        without_stop, stop = self._tokenizer.split_stop(known.token_ids)
        at = n + len(shown_messages) - len(history)
        found = self._tokenizer.continuation(shown_messages, at, shown_tools, self._tokenizer.decode(without_stop))
        if found is None:
            return None
        end, text = found
        ids = self._tokenizer.encode(text)
        if end is not None:
            return ids if stop == end else [end, *ids]
        # Where no token ends a turn, what begins the next one does, and may have been sampled.
        return ids[1:] if stop is not None and ids[:1] == [stop] else ids

    def begins_within(self, prompt: Prompt) -> bool:
        """Return whether the model's reply to this prompt begins inside its thoughts."""
        return self._form.begins_within(self._tokenizer.decode(prompt.token_ids[-16:]))

    def add_sampled(self, prompt: Prompt, generation: Generation, reply: Message, error: ChunkError | None) -> Chunk:
        """Record the tokens that the engine sampled for `prompt`, together with `reply`, the message read from them."""
        return self._add(prompt, generation, reply, error, sampled=True)

    def add_unsampled(
        self,
        prompt: Prompt,
        reply: Message,
        token_ids: tuple[int, ...] | None = None,
        error: ChunkError | None = None,
        finish_reason: FinishReason = "stop",
    ) -> Chunk:
        """Record a reply that the policy did not sample (a demonstrator's, an expert's): as the model would have
        written it, or with the given tokens. A reply that was cut (`length`) gets no stop token."""
        if token_ids is None:
            text, end = self._write(prompt, reply)
            token_ids = (*self._tokenizer.encode(text), *([] if finish_reason == "length" else [end]))
        return self._add(prompt, Generation(token_ids, (), (), finish_reason), reply, error, sampled=False)

    def _write(self, prompt: Prompt, reply: Message) -> tuple[str, int]:
        """Return a reply as the template writes it, and the token that ends it. If the template writes replies in
        another way than it asks for them, the reply is as the model's format writes it."""
        shown, tools = self._form.for_template(self._tokenizer, (*prompt.messages, reply), prompt.tools)
        found = self._tokenizer.write_reply(shown[:-1], shown[-1], tools)
        if found is not None:
            return found
        text = self._form.write(reply, within=self.begins_within(prompt))
        return text, self._tokenizer.end_of(calls=bool(reply.tool_calls))

    def _add(
        self, prompt: Prompt, made: Generation, reply: Message, error: ChunkError | None, *, sampled: bool
    ) -> Chunk:
        index = self._line_for(prompt)
        line = self._lines[index]
        start = len(prompt.token_ids)
        line.prompt_ids, line.reply_ids = prompt.token_ids, made.token_ids
        line.messages = (*prompt.messages, reply)
        end = len(line)
        # Since this prompt was made, another call may have added a tree or extended it.
        node = prompt.node if prompt.depth else self._trees.setdefault(_names(prompt.tools), _Node())
        for message in line.messages[prompt.depth :]:
            node = node.after.setdefault(canonical_form(message), _Node())
        node.known = _KnownPrefix(index, end, made.token_ids, reply)
        self._last = (self._trees[_names(prompt.tools)], line.messages, node)
        self.changed_echoes += prompt.changed
        self.template_rewrites += prompt.rewritten
        token_data, turn = (made.logprobs, made.versions, made.finish_reason), len(prompt.messages)
        chunk = Chunk(len(self._chunks), index, start, end, *token_data, sampled, error, turn=turn)
        self._chunks.append(chunk)
        return chunk

    def note(self, chunk: int, asked: Mapping[str, Any], called_at: float, seconds: float) -> None:
        """Store when this chunk's call came and how long it took, and the fields of its request beside messages and
        tools; of a large value only the length is stored."""
        kept = {
            key: value if len(text := json.dumps(value)) <= NOTED_CHARS else f"({len(text)} characters)"
            for key, value in asked.items()
        }
        self._chunks[chunk] = replace(self._chunks[chunk], asked=kept, called_at=called_at, seconds=seconds)

    def _line_for(self, prompt: Prompt) -> int:
        """Return the index of the line for `prompt`: the old line if the prompt extends its end, else a new one."""
        known = prompt.known
        if known is not None and len(self._lines[known.line]) == known.length:
            return known.line
        self._lines.append(_Context(tools=prompt.tools))
        return len(self._lines) - 1

    def mark_error(self, chunk: int, error: ChunkError) -> None:
        """Attach an error to a recorded chunk; a chunk that has an error keeps it."""
        if self._chunks[chunk].error is None:
            self._chunks[chunk] = replace(self._chunks[chunk], error=error)

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        """All lines so far."""
        return tuple(Sequence(line.token_ids, line.messages, line.tools) for line in self._lines)

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """All chunks so far, in the order in which they were made."""
        return tuple(self._chunks)


def _follow_history(
    history: tuple[Message, ...], node: _Node, depth: int
) -> tuple[_Node, int, list[tuple[int, _KnownPrefix]]]:
    """Follow the history down the tree from the node of its first `depth` messages; return the last node, its depth and
    the known prefixes on the way."""
    prefixes = [] if node.known is None else [(depth, node.known)]
    for message in history[depth:]:
        below = node.after.get(canonical_form(message))
        if below is None:
            break
        node, depth = below, depth + 1
        if node.known is not None:
            prefixes.append((depth, node.known))
    return node, depth, prefixes


def _restore_own_replies(history: tuple[Message, ...], known: Seq[tuple[int, _KnownPrefix]]) -> tuple[Message, ...]:
    """Return the messages with the model's own replies as it gave them, whatever the agent made of them."""
    changed = {n - 1: reply.reply for n, reply in known if history[n - 1] != reply.reply}
    return tuple(changed.get(i, message) for i, message in enumerate(history)) if changed else history


def canonical_form(message: Message) -> Message:
    """Return the message without the parts that an agent may change when it sends the message back: two messages with
    the same form count as the same reply of the model."""
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
