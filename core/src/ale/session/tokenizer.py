"""Converts text to tokens and back, with the model's own chat template.

`ChatTokenizer` wraps a Hugging Face tokenizer folder. `train_tokenizer` makes such a folder for a model with random
weights: a byte-level BPE with ChatML-like special tokens, trained on texts that the caller provides. `byte_tokenizer`
serves runs without a model (scripted engines, demonstrations before there is a vocabulary): one token for each byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ale.errors import ConfigError
from ale.messages import Message, ToolSpec, whole_characters
from ale.registry.validation import one_line_error
from ale.session.chat_template import ANCHOR, CALL, MARKS, PROBE_TOOLS, ChatTemplate

PAD, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (PAD, TURN_START, TURN_END, "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

# This is Qwen's form of ChatML, but with one short line for each tool instead of its JSON Schema: a context of a few
# hundred tokens has no room for schemas. A tool's answer is a turn with its own role.
CHAT_TEMPLATE = """\
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson + '}\\n</tool_call>' }}
        {%- endfor %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content }}
        {%- if message.role == 'system' and tools %}
            {{- '\\nTools:' }}
            {%- for tool in tools %}
                {{- ' ' + tool.function.name + '(' + tool.function.parameters.properties.keys() | join(', ') + ')' }}
            {%- endfor %}
        {%- endif %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""


PROBE = (
    Message("system", "s"),
    Message("user", "u"),
    Message("assistant", "", (CALL,)),
    Message("tool", "t", tool_call_id="c1"),
    Message("assistant", "one"),
    Message("user", " v\n"),
    Message("assistant", "two", (CALL, CALL)),
    Message("tool", "x", tool_call_id="c1"),
    Message("tool", "y", tool_call_id="c1"),
    Message("assistant", "three"),
    Message("user", "w"),
    Message("user", "again"),
    Message("assistant", "four"),
    Message("system", "late"),
    Message("user", "z"),
)
PROBES = (
    PROBE,
    tuple(replace(message, reasoning="why") if message.role == "assistant" else message for message in PROBE),
    tuple(replace(message, reasoning="why") if message is PROBE[2] else message for message in PROBE),
)
"""The same conversation without thoughts, with thoughts before each reply, and before the first one alone."""


class ChatTokenizer:
    """A Hugging Face tokenizer with a chat template (it satisfies `ale.specs.engine.Tokenizer`).

    `rows` is the number of tokens that the model itself knows, which may be more than the tokenizer has: many models
    are padded. It may sample a token of the padding, which is no text.
    """

    def __init__(self, hugging_face: Any, stop_token_ids: Sequence[int] = (), rows: int = 0) -> None:
        self._hf = hugging_face
        self._rows = rows
        self._fast = hugging_face.backend_tokenizer
        self.template = ChatTemplate(hugging_face)
        self.turn_end_id: int | None = self._fast.token_to_id(self.template.turn_end)
        """The token that the template writes after a reply; None if it writes none."""
        named = [self.turn_end_id, hugging_face.eos_token_id, *stop_token_ids]
        # A configuration may name tokens that the vocabulary does not have.
        known = (token for token in named if token is not None and self._fast.id_to_token(token) is not None)
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys(known))
        """The tokens that end a model response; the first is written after a reply that the model did not sample."""
        self.template.turn_tokens = self.template.find_turn_tokens(self.decode([t]) for t in self.stop_token_ids)

    @cached_property
    def parsing(self) -> ChatTokenizer:
        """The same tokenizer for trusted texts: control tokens in them are the model's, as for transformers."""
        other = copy(self)
        other.template = ChatTemplate(self._hf, parses=True)
        return other

    @classmethod
    def load(cls, folder: Path) -> ChatTokenizer:
        """Read a folder with `tokenizer.json` and a chat template. Raises `ConfigError`."""
        from transformers import PreTrainedTokenizerFast

        try:
            # AutoTokenizer would replace, for some model types, settings of tokenizer.json with its own.
            hf = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
        except Exception as error:  # the library raises many kinds of errors, and each means that the folder is wrong
            reason = "it has no tokenizer.json" if not (folder / "tokenizer.json").exists() else one_line_error(error)
            raise ConfigError(f"The folder {folder} holds no tokenizer that can be loaded: {reason}.") from error
        if not getattr(hf, "chat_template", None):
            raise ConfigError(
                f"The tokenizer in {folder} has no chat template; add a chat_template.jinja to the folder."
            )
        if not hasattr(hf, "backend_tokenizer"):
            raise ConfigError(f"The tokenizer in {folder} is a slow one; convert it to tokenizer.json first.")
        generation, config = (_read_json(folder / f"{name}.json") for name in ("generation_config", "config"))
        rows = config.get("vocab_size", _mapping(config.get("text_config")).get("vocab_size"))
        return cls(hf, [*_read_eos(generation), *_read_eos(config)], rows if isinstance(rows, int) else 0)

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        return int(self._fast.get_vocab_size())

    @cached_property
    def id_limit(self) -> int:
        """The number that every token id is below which the model can sample or see."""
        return max(self._rows, 1 + max(map(int, self._fast.get_vocab(with_added_tokens=True).values())))

    @cached_property
    def ordinary_token_ids(self) -> list[int]:
        """The tokens of ordinary text, which are all but those that were added to the vocabulary."""
        added = set(self._hf.added_tokens_decoder)
        return sorted(set(self._fast.get_vocab(with_added_tokens=True).values()) - added)

    def tokens_from(self, rows: int) -> list[str]:
        """Return the tokens with an id of `rows` or more that prompts or replies can hold: tokens of ordinary text, and
        added ones that the template writes or that end a reply."""
        used = self.template.written_tokens | {self._fast.id_to_token(token) for token in self.stop_token_ids}
        added = set(self.template.added_tokens)
        vocabulary = self._fast.get_vocab(with_added_tokens=True)
        beyond = sorted((number, token) for token, number in vocabulary.items() if number >= rows)
        return [token for _, token in beyond if token not in added or token in used]

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`; special tokens in it are recognised unless they are marked as text
        (`chat_template.MARKS`), and none are added."""
        if MARKS[0] in text or MARKS[1] in text:
            return self._encode_marked(text)
        return list(self._fast.encode(whole_characters(text), add_special_tokens=False).ids)

    def last_part(self, text: str, count: int) -> str:
        """Return the end of a text that has about `count` tokens."""
        offsets = self._fast.encode(whole_characters(text), add_special_tokens=False).offsets
        return text[offsets[-count][0] :] if 0 < count <= len(offsets) else "" if count <= 0 else text

    @cached_property
    def around_text(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens before and after a document: what the tokenizer itself writes there (BOS, where it does), and its
        end token if it writes none after."""
        plain, whole = self.encode("a"), list(self._fast.encode("a").ids)
        at = next((i for i in range(len(whole)) if whole[i : i + len(plain)] == plain), 0)
        eos = self._hf.eos_token_id
        end = self.stop_token_ids[:1] if eos is None else (eos,)
        return tuple(whole[:at]), tuple(whole[at + len(plain) :]) or end

    def _encode_marked(self, text: str) -> list[int]:
        """Return the token ids of a text in which some control tokens are text."""
        start, end = MARKS
        first, *pieces = re.split(f"({start}[^{start}{end}]*{end})|[{start}{end}]", text)
        ids, newline = self.encode(first), self.encode("\n")
        for piece in pieces:
            if not piece:
                continue
            encode = self._encode_plain if piece.startswith(start) else self.encode
            inner = piece.strip(start + end)
            # After a new line, since some tokenizers write a space before the first word of a text.
            found = encode("\n" + inner)
            ids += found[len(newline) :] if found[: len(newline)] == newline else encode(inner)
        return ids

    def _encode_plain(self, text: str) -> list[int]:
        return list(self._plain.encode(whole_characters(text), add_special_tokens=False).ids)

    @cached_property
    def _plain(self) -> Any:
        """The same tokenizer without added tokens, to which their text is ordinary."""
        from tokenizers import Tokenizer

        return Tokenizer.from_str(json.dumps({**json.loads(self._fast.to_str()), "added_tokens": []}))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of `token_ids`, special tokens included."""
        return str(self._fast.decode(list(token_ids), skip_special_tokens=False))

    def piece(self, token_id: int) -> str | None:
        """Return a token as the vocabulary writes it; None for a number that is no token."""
        piece: str | None = self._fast.id_to_token(token_id)
        return piece

    def split_stop(self, token_ids: Sequence[int]) -> tuple[Sequence[int], int | None]:
        """Return the tokens of a reply without the stop token that ended it, and this; None if none did."""
        if token_ids and token_ids[-1] in self.stop_token_ids:
            return token_ids[:-1], token_ids[-1]
        return token_ids, None

    def without_end(self, text: str) -> str:
        """Return a reply's text without the end token that some data sets write at its end."""
        end = next((stop for stop in self._stop_texts if text.rstrip().endswith(stop)), "")
        return text.rstrip().removesuffix(end) if end else text

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, prompt: bool) -> str:
        """Return the conversation as text by the chat template (`ChatTemplate.render`), for `encode`."""
        return self.template.render(messages, tools, prompt=prompt)

    def continuation(
        self, messages: Sequence[Message], n: int, tools: Sequence[ToolSpec] = (), sampled: str | None = None
    ) -> tuple[int | None, str] | None:
        """Return the stop token that the template writes after the reply `messages[n - 1]` (None if it writes none),
        and the text between this and the model's next reply. None if the template writes the earlier part in another
        way than the model saw and sampled it (`sampled` is that text, without the stop token), once something follows.

        If the template writes each message independently of those far before it, which is tested once, only the reply
        and later messages are rendered: a turn of a long conversation costs no more than one of a short one."""
        sampled = None if sampled is None else self.template.mark_reply(sampled)
        return (self._near if self.is_local else self._between)(messages, n, tools, sampled)

    def _near(
        self, messages: Sequence[Message], n: int, tools: Sequence[ToolSpec], sampled: str | None = None
    ) -> tuple[int | None, str] | None:
        """Return `_between` with almost nothing before the reply."""
        return self._between([*ANCHOR, *messages[n - 1 :]], len(ANCHOR) + 1, tools, sampled)

    def _between(
        self, messages: Sequence[Message], n: int, tools: Sequence[ToolSpec], sampled: str | None = None
    ) -> tuple[int | None, str] | None:
        asked = self.render(messages[: n - 1], tools, prompt=True)
        whole = self.render(messages, tools, prompt=True)
        if sampled is not None and whole.startswith(asked + sampled):
            end = self._stops.match(whole, len(asked + sampled))
            if end is not None and self.turn_end_id is not None:
                return self._stop_texts[end.group()], whole[end.end() :]
        before = self.render(messages[:n], tools, prompt=False)
        if not before.startswith(asked):
            return None
        # What a template writes after the last turn of all, as Phi's its end of text, it does not write here.
        for match in reversed(list(self._stops.finditer(before, len(asked)))):
            if whole.startswith(before[: match.end()]):
                return self._stop_texts[match.group()], whole[match.end() :]
        return (None, whole[len(before) :]) if whole.startswith(before) else None

    def write_reply(
        self, before: Sequence[Message], reply: Message, tools: Sequence[ToolSpec]
    ) -> tuple[str, int] | None:
        """Return what the template writes for a reply after `before`, and the token that ends it; None if the template
        begins a reply in another way than its prompt for one ends."""
        prompt = self.render(before, tools, prompt=True)
        whole = self.render([*before, reply], tools, prompt=False)
        if not whole.startswith(prompt):
            return None
        end = self._stops.search(whole, len(prompt))
        if end is None:
            return whole[len(prompt) :], self.end_of(calls=bool(reply.tool_calls))
        return whole[len(prompt) : end.start()], self._stop_texts[end.group()]

    def end_of(self, *, calls: bool) -> int:
        """Return the token that ends a reply. Where the template writes none (GLM's), the next turn's first token does:
        of a tool's answer, if the reply has calls, or of a user's message."""
        if self.turn_end_id is not None:
            return self.turn_end_id
        reply = Message("assistant", "r", (CALL,) if calls else ())
        answer = Message("tool", "t", tool_call_id=CALL.id) if calls else Message("user", "u")
        with suppress(Exception):  # templates raise any exception for conversations that they do not support
            found = self._between([*ANCHOR, reply, answer], 2, ())
            if found is not None and (first := self.encode(found[1])[:1])[0] in self.stop_token_ids:
                return first[0]
        return self.stop_token_ids[0]

    @cached_property
    def _stop_texts(self) -> dict[str, int]:
        return {text: token for token in reversed(self.stop_token_ids) if (text := self.decode([token]))}

    @cached_property
    def _stops(self) -> re.Pattern[str]:
        texts = "|".join(map(re.escape, sorted(self._stop_texts, key=len, reverse=True)))
        return re.compile(f"(?<!{MARKS[0]})(?:{texts})" if texts else "(?!)")

    @cached_property
    def is_local(self) -> bool:
        """Whether the template continued all of several test conversations alike without the earlier messages."""
        try:
            return all(
                self._between(probe[:end], n, tools) == self._near(probe[:end], n, tools)
                for probe in (PROBES if self.writes_thoughts else PROBES[:1])
                for end in range(len(probe) - 5, len(probe) + 1)
                for n, message in enumerate(probe[:end], 1)
                if message.role == "assistant"
                for tools in ((), PROBE_TOOLS)
            )
        except Exception:  # templates raise any exception for conversations that they do not support
            return False

    @cached_property
    def writes_tools(self) -> bool:
        """Whether the template writes the tools that the model may call, even if only with a system message."""
        return self._shows(ANCHOR, PROBE_TOOLS) or self._shows(PROBE[:2], PROBE_TOOLS)

    @cached_property
    def writes_calls(self) -> bool:
        """Whether the template writes the calls of a reply, and the answers of tools."""
        return self._shows(
            (*ANCHOR, Message("assistant", "", (CALL,)), Message("tool", "answer", tool_call_id="c1")), ()
        )

    @cached_property
    def writes_thoughts(self) -> bool:
        """Whether the template writes the thoughts of a reply, at least of the last one."""
        replies = (Message("assistant", "r", calls, reasoning="thoughts") for calls in ((), (CALL,)))
        return any(self._shows((*ANCHOR, reply), (), "thoughts") for reply in replies)

    def _shows(self, messages: Sequence[Message], tools: Sequence[ToolSpec], word: str = CALL.name) -> bool:
        try:
            text = self.render(messages, tools, prompt=False)
        except Exception:  # templates raise any exception for messages that they do not support
            return False
        return word in text and all(message.content in text for message in messages)

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files into `folder`."""
        self._hf.save_pretrained(str(folder))
        file = folder / "tokenizer_config.json"
        settings = json.loads(file.read_text())
        # transformers 5 writes its own name of this class, which earlier releases do not know.
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n")


def _read_json(file: Path) -> dict[str, Any]:
    """Return a configuration of transformers; empty if there is none that can be read."""
    try:
        return _mapping(json.loads(file.read_text()))
    except (OSError, ValueError):
        return {}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _read_eos(config: dict[str, Any]) -> list[int]:
    """Return the end tokens that a configuration names."""
    eos = config.get("eos_token_id")
    return [token for token in (eos if isinstance(eos, list) else [eos]) if isinstance(token, int)]


QWEN_UNITS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""What merges of Qwen2's tokenizer stay within, as transformers has it (`PRETOKENIZE_REGEX`)."""


def train_tokenizer(texts: Iterable[str], vocab_size: int, model_type: str = "llama") -> ChatTokenizer:
    """Train a byte-level BPE of at most `vocab_size` tokens on `texts`.

    Merges stay within these units: words (with a dot before them, so that endings such as `.txt` are one), single
    digits, runs of everything else, and the fixed parts of a tool call. A name is then always split in the same way,
    which a small model needs in order to copy it.

    For models of the type `qwen2`, `AutoTokenizer` of transformers takes the normalizer and the units of Qwen's own
    tokenizer in place of those in tokenizer.json. A tokenizer for them has both units: no merge crosses ours anywhere,
    so that the same text is the same tokens with Qwen's alone.
    """
    from tokenizers import Regex, normalizers, pre_tokenizers

    units = r'\n?\{"name": "|", "arguments": \{"?|\.?[A-Za-z]+|[0-9]|[^A-Za-z0-9.]+|\.'
    split = pre_tokenizers.Split(Regex(units), "isolated")
    # The trainer would count the text of special tokens like any other text, and merge across it.
    special = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
    parts = (part for text in texts for part in special.split(text) if part)
    if model_type != "qwen2":
        return _train_bpe([split], parts, vocab_size)
    return _train_bpe(
        [pre_tokenizers.Split(Regex(QWEN_UNITS), "isolated"), split], parts, vocab_size, normalizers.NFC()
    )


def byte_tokenizer() -> ChatTokenizer:
    """Return a tokenizer with one token for each byte, and the special tokens of `train_tokenizer`."""
    from tokenizers import pre_tokenizers

    return _train_bpe([pre_tokenizers.Split("", "isolated")], (), vocab_size=0)


def _train_bpe(units: Sequence[Any], texts: Iterable[str], vocab_size: int, normalizer: Any = None) -> ChatTokenizer:
    """Train on the texts; `units` split them into what merges stay within."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe: Any = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([*units, byte_level])
    if normalizer is not None:
        bpe.normalizer = normalizer
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    fast: Any = PreTrainedTokenizerFast  # the library does not type it
    hf = fast(tokenizer_object=bpe, eos_token=TURN_END, pad_token=PAD, chat_template=CHAT_TEMPLATE)
    return ChatTokenizer(hf)
