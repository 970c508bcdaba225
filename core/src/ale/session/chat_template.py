"""Renders conversations with a model's chat template, to the same text as transformers' `apply_chat_template`.

1. transformers compiles the template, so that ALE takes whatever it takes: the tag `{% generation %}`, arguments of
   `tojson`, its sandbox. Of several named templates, `tool_use` is for requests with tools and `default` for others.
2. A control token in the text of a user, a system message or a tool is text: it is marked before the template sees it,
   and `ChatTokenizer.encode` turns what is marked into ordinary tokens. In a reply, which may hold the model's own
   marks of thoughts and calls, only what ends or begins turns is.
3. Calls have their arguments as objects; a template that cannot write objects gets the JSON text.
4. The end of a turn is what the template writes after a reply. The tokenizer's own end token is often another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import Any

from ale.errors import ConfigError, RequestRefused
from ale.messages import Message, ToolCall, ToolSpec
from ale.registry.validation import describe_error, one_line_error

ANCHOR = (Message("user", "a"),)
"""A stand-in for the messages before a reply when their content does not matter."""
CALL = ToolCall("c1", "probe", '{"b": 1}')
PROBE_TOOLS = (ToolSpec("probe", "p"),)
MARKS = ("\ufdd0", "\ufdd1")
"""They enclose a control token that is text. Unicode keeps both for a program's own use; no text holds them."""
REPLY = "reply"


class ChatTemplate:
    """The chat template of a tokenizer of transformers. Raises `ConfigError` if none of several is the default. If it
    `parses`, control tokens in texts are what they are for transformers: the model's control tokens."""

    def __init__(self, hugging_face: Any, *, parses: bool = False) -> None:
        self._parses = parses
        found = hugging_face.chat_template
        named: Mapping[str, str] = found if isinstance(found, Mapping) else {"default": found}
        if "default" not in named:
            raise ConfigError(
                f"The tokenizer has chat templates named {', '.join(sorted(named))} and none named default; give the "
                "one that is to be used this name."
            )
        self._default = _compile(named["default"])
        self._with_tools = _compile(named.get("tool_use", named["default"]))
        self._variables = hugging_face.special_tokens_map
        added = hugging_face.added_tokens_decoder.values()
        self.added_tokens: tuple[str, ...] = tuple(token.content for token in added)
        texts = "\0".join(named.values())
        self.written_tokens = frozenset(token for token in self.added_tokens if token in texts)
        """The added tokens that the template names."""
        control = {token.content for token in added if token.special or token.content in self.written_tokens}
        self._control = _any_of(() if parses else control)
        self.turn_tokens: frozenset[str] = frozenset()
        """What ends or begins turns, as texts; `ChatTokenizer` sets it when it knows the stop tokens."""

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, prompt: bool) -> str:
        """Return the conversation as text; with `prompt`, it ends where the reply begins. Control tokens in it that the
        template did not write are marked. Raises `RequestRefused` if the template refuses the conversation."""
        return self._render(messages, tools, prompt, self._takes_json_text)

    def _render(self, messages: Sequence[Message], tools: Sequence[ToolSpec], prompt: bool, json_text: bool) -> str:
        from jinja2.exceptions import TemplateError

        template = self._with_tools if tools else self._default
        try:
            return str(
                template.render(
                    messages=[self._for_template(message, json_text) for message in messages],
                    tools=[self._mark(tool.to_openai()) for tool in tools] or None,
                    documents=None,
                    add_generation_prompt=prompt,
                    **self._variables,
                )
            )
        except Exception as error:  # templates raise any exception for conversations that they do not support
            reason = one_line_error(error) if isinstance(error, TemplateError) else describe_error(error)
            raise RequestRefused(f"The chat template refuses this conversation: {reason}.") from error

    def _for_template(self, message: Message, json_text: bool) -> dict[str, Any]:
        """Return a message under the names that templates read."""
        data = message.to_openai()
        if message.role != "assistant":
            data["content"] = self._mark(message.content)
        else:
            data = self._mark(data, self._turns)
        if message.reasoning:
            data["thinking"] = self.mark_reply(message.reasoning)
        if not json_text:
            for call, out in zip(message.tool_calls, data.get("tool_calls", ()), strict=True):
                with suppress(ValueError):
                    out["function"]["arguments"] = self._mark(call.parsed_arguments(), self._turns)
        return data

    def mark_reply(self, text: str) -> str:
        """Return the text of a reply with what would end or begin a turn marked."""
        marked: str = self._mark(text, self._turns)
        return marked

    def _mark(self, value: Any, control: re.Pattern[str] | None = None) -> Any:
        """Return a value of JSON with its control tokens marked."""
        if isinstance(value, str):
            start, end = MARKS
            plain = value.replace(start, "").replace(end, "")
            return (control or self._control).sub(f"{start}\\g<0>{end}", plain)
        if isinstance(value, Mapping):
            return {key: self._mark(item, control) for key, item in value.items()}
        return [self._mark(item, control) for item in value] if isinstance(value, list | tuple) else value

    @property
    def _turns(self) -> re.Pattern[str]:
        return _any_of(() if self._parses else self.turn_tokens)

    def find_turn_tokens(self, stops: Iterable[str]) -> frozenset[str]:
        """Return the tokens that end a reply, and those that the template writes around a user's message and a system
        message: what somebody else says must not come from within a reply."""
        found = {stop for stop in stops if stop}
        for messages in (ANCHOR, (Message("system", "a"), *ANCHOR)):
            with suppress(Exception):  # templates raise any exception for conversations that they do not support
                found.update(self._control.findall(self.render(messages, prompt=False)))
        return frozenset(found)

    @cached_property
    def _takes_json_text(self) -> bool:
        """Whether calls' arguments must be JSON text (DeepSeek's templates append it to other text)."""
        messages = (*ANCHOR, Message("assistant", "", (CALL,)))
        for json_text in (False, True):
            with suppress(Exception):  # templates raise any exception for what they do not support
                self._render(messages, (), False, json_text)
                return json_text
        return False

    @cached_property
    def turn_end(self) -> str:
        """The token that the template writes after a reply, as text; empty if it writes none there."""
        with suppress(Exception):  # templates raise any exception for conversations that they do not support
            text = self.render((*ANCHOR, Message("assistant", REPLY)), prompt=False)
            after = text.rpartition(REPLY)[2].lstrip()
            return max((token for token in self.added_tokens if after.startswith(token)), key=len, default="")
        return ""


@lru_cache(maxsize=64)
def _pattern(texts: frozenset[str]) -> re.Pattern[str]:
    longest_first = sorted((text for text in texts if text and not text.isspace()), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Return the pattern of any of these texts, the longest first."""
    return _pattern(frozenset(texts))


def _compile(template: str) -> Any:
    """Compile a chat template as transformers does. Raises `ConfigError`."""
    from jinja2.exceptions import TemplateSyntaxError
    from transformers.utils.chat_template_utils import _compile_jinja_template

    try:
        return _compile_jinja_template(template)
    except TemplateSyntaxError as error:
        raise ConfigError(
            f"The chat template is no valid Jinja: line {error.lineno}: {one_line_error(error.message or error)}."
        ) from error
