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
from datetime import datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from ale.errors import ConfigError, RequestRefused
from ale.messages import Message, ToolCall, ToolSpec
from ale.registry.validation import one_line_error

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


ANCHOR = (Message("user", "a"),)
"""A stand-in for the messages before a reply when their content does not matter."""
_CALL = ToolCall("c1", "probe", '{"b": 1}')
PROBE = (
    Message("system", "s"),
    Message("user", "u"),
    Message("assistant", "", (_CALL,)),
    Message("tool", "t", tool_call_id="c1"),
    Message("assistant", "one"),
    Message("user", " v\n"),
    Message("assistant", "two", (_CALL, _CALL)),
    Message("tool", "x", tool_call_id="c1"),
    Message("tool", "y", tool_call_id="c1"),
    Message("assistant", "three"),
    Message("user", "w"),
    Message("user", "again"),
    Message("assistant", "four"),
    Message("system", "late"),
    Message("user", "z"),
)
PROBE_TOOLS = (ToolSpec("probe", "p"),)


class ChatTokenizer:
    """A Hugging Face tokenizer with a chat template (it satisfies `ale.specs.engine.Tokenizer`)."""

    def __init__(self, hugging_face: Any, stop_token_ids: Sequence[int] = ()) -> None:
        self._hf = hugging_face
        self._fast = hugging_face.backend_tokenizer
        eos = hugging_face.eos_token_id
        own = [] if eos is None else [eos]
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys([*own, *stop_token_ids]))
        """The tokens that end a model response."""
        self._template = _compile(hugging_face.chat_template)
        self._special = hugging_face.special_tokens_map

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
        stop: list[int] = []
        generation = folder / "generation_config.json"
        if generation.exists():
            eos = json.loads(generation.read_text()).get("eos_token_id")
            stop = eos if isinstance(eos, list) else [eos] if isinstance(eos, int) else []
        return cls(hf, stop)

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        return int(self._fast.get_vocab_size())

    @cached_property
    def stop_text(self) -> str:
        """The text of the first stop token."""
        return self.decode(self.stop_token_ids[:1])

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`; special tokens in it are recognised, and none are added."""
        try:
            return list(self._fast.encode(text, add_special_tokens=False).ids)
        except TypeError:  # a lone surrogate, which JSON may hold, has no bytes
            return list(self._fast.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of `token_ids`, special tokens included."""
        return str(self._fast.decode(list(token_ids), skip_special_tokens=False))

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, prompt: bool) -> str:
        """Return the conversation as text by the chat template; with `prompt`, it ends where the reply begins."""
        return str(
            self._template.render(
                messages=[_for_template(m) for m in messages],
                tools=[t.to_openai() for t in tools] or None,
                add_generation_prompt=prompt,
                **self._special,
            )
        )

    def continuation(self, messages: Sequence[Message], n: int, tools: Sequence[ToolSpec] = ()) -> str | None:
        """Return the text between the end of the reply `messages[n - 1]` and the model's next one; None if the template
        writes the earlier part in another way once something follows.

        If the template writes each message independently of those far before it, which is tested once, only the reply
        and later messages are rendered: a turn of a long conversation costs no more than one of a short one."""
        return (self._near if self.is_local else self._between)(messages, n, tools)

    def _near(self, messages: Sequence[Message], n: int, tools: Sequence[ToolSpec]) -> str | None:
        """Return `_between` with almost nothing before the reply."""
        return self._between([*ANCHOR, *messages[n - 1 :]], len(ANCHOR) + 1, tools)

    def _between(self, messages: Sequence[Message], n: int, tools: Sequence[ToolSpec]) -> str | None:
        before = self.render(messages[:n], tools, prompt=False)
        whole = self.render(messages, tools, prompt=True)
        if not whole.startswith(before):
            return None
        stop = self.stop_text
        return (before.rpartition(stop)[2] if stop and stop in before else "") + whole[len(before) :]

    @cached_property
    def is_local(self) -> bool:
        """Whether the template continued all of several test conversations alike without the earlier messages."""
        try:
            return all(
                self._between(PROBE[:end], n, tools) == self._near(PROBE[:end], n, tools)
                for end in range(len(PROBE) - 5, len(PROBE) + 1)
                for n, message in enumerate(PROBE[:end], 1)
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
            (*ANCHOR, Message("assistant", "", (_CALL,)), Message("tool", "answer", tool_call_id="c1")), ()
        )

    def _shows(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> bool:
        try:
            text = self.render(messages, tools, prompt=False)
        except Exception:  # templates raise any exception for messages that they do not support
            return False
        return _CALL.name in text and all(message.content in text for message in messages)

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files into `folder`."""
        self._hf.save_pretrained(str(folder))


@cache
def _compile(template: str) -> Any:
    """Compile a chat template as transformers does (its own function does much more, some 3 ms at each call)."""
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise RequestRefused(f"The chat template refuses this conversation: {message}")

    def to_json(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


def _for_template(message: Message) -> dict[str, Any]:
    """Return a message for chat templates, which expect a call's arguments as an object instead of JSON text."""
    data = message.to_openai()
    for call, out in zip(message.tool_calls, data.get("tool_calls", ()), strict=True):
        with suppress(ValueError):
            out["function"]["arguments"] = call.parsed_arguments()
    return data


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> ChatTokenizer:
    """Train a byte-level BPE of at most `vocab_size` tokens on `texts`.

    Merges stay within these units: words (with a dot before them, so that endings such as `.txt` are one), single
    digits, runs of everything else, and the fixed parts of a tool call. A name is then always split in the same way,
    which a small model needs in order to copy it.
    """
    from tokenizers import Regex, pre_tokenizers

    units = r'\n?\{"name": "|", "arguments": \{"?|\.?[A-Za-z]+|[0-9]|[^A-Za-z0-9.]+|\.'
    # The trainer would count the text of special tokens like any other text, and merge across it.
    special = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
    parts = (part for text in texts for part in special.split(text) if part)
    return _train_bpe(pre_tokenizers.Split(Regex(units), "isolated"), parts, vocab_size)


def byte_tokenizer() -> ChatTokenizer:
    """Return a tokenizer with one token for each byte, and the special tokens of `train_tokenizer`."""
    from tokenizers import pre_tokenizers

    return _train_bpe(pre_tokenizers.Split("", "isolated"), (), vocab_size=0)


def _train_bpe(units: Any, texts: Iterable[str], vocab_size: int) -> ChatTokenizer:
    """Train on the texts; `units` splits them into what merges stay within."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe: Any = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([units, byte_level])
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
