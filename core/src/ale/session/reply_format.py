"""Converts replies between text and message: thoughts, tool calls, and text that cannot be read.

1. The text between the marks of thoughts at the beginning of a reply becomes `Message.reasoning`. If the prompt itself
   ends with the opening mark, the reply begins inside the thoughts.
2. The model's `ToolFormat` reads the rest. If it reports a call that cannot be read, all of the text is content, and
   `illegal` says why: no text is lost.
3. For a model whose chat template has no place for tools or calls, they are written into messages that every template
   can render.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from ale.config.episode import DEFAULT_TOOL_FORMAT, ControlTokens
from ale.errors import AleError, PluginError
from ale.messages import Message, ToolCall, ToolSpec
from ale.registry.drivers import build_driver
from ale.registry.validation import describe_error, one_line_error
from ale.session.tokenizer import ChatTokenizer
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale.specs.tool_format import ToolFormat

Marks = tuple[str, str]
THOUGHTS: Marks = ("<think>", "</think>")


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """An assistant message read from sampled text; `illegal` is a sentence if a call could not be read."""

    message: Message
    illegal: str | None = None


@cache
def default_tool_format() -> ToolFormat:
    """Return the installed tool format that is used if the run file names none. Raises `ConfigError`, `PluginError`."""
    driver = build_driver("tool_format", PluginChoice(use=DEFAULT_TOOL_FORMAT), DriverContext(), "session.tool_format")
    assert isinstance(driver, ToolFormat)
    return driver


class ReplyForm:
    """The format in which a model writes its replies, and how texts of others are read. It is stateless."""

    def __init__(
        self,
        tool_format: ToolFormat | None = None,
        thoughts: Marks | None = THOUGHTS,
        control_tokens: ControlTokens = "text",
    ) -> None:
        self.control_tokens = control_tokens
        self.tool_format = tool_format or default_tool_format()
        self.thoughts = thoughts

    def read(
        self, text: str, call_prefix: str, tools: Sequence[ToolSpec] = (), *, calls: bool = True, within: bool = False
    ) -> ParsedReply:
        """Read the sampled text of one reply, which comes without its stop token.

        The id of a call is `call_prefix` and a number, so that ids are unique in the conversation and reproducible.
        Without `calls` the text is not searched for calls; `within` says that the reply begins inside the thoughts."""
        thought, content = self.split(text, within)
        if not calls:
            return ParsedReply(Message("assistant", content, reasoning=thought))
        try:
            read = self.tool_format.read(content, tools)
        except ValueError as error:
            return ParsedReply(Message("assistant", content, reasoning=thought), str(error))
        except AleError:
            raise
        except Exception as error:
            name = type(self.tool_format).__name__
            raise PluginError(f"The tool format {name} crashed: {describe_error(error)}.") from error
        made = tuple(ToolCall(f"{call_prefix}_{i}", c.name, c.arguments) for i, c in enumerate(read.calls))
        try:
            for call in made:
                call.parsed_arguments()
        except (ValueError, RecursionError) as error:
            reason = f"The arguments of '{call.name}' are no JSON object: {one_line_error(error)}."
            return ParsedReply(Message("assistant", content, reasoning=thought), reason)
        return ParsedReply(Message("assistant", read.content, made, reasoning=thought))

    def answer_start(self, text: str, within: bool = False) -> int:
        """Return where the thoughts at the beginning of a reply end; the text's length if they do not end."""
        if self.thoughts is None:
            return 0
        opening, closing = self.thoughts
        begins = len(text) - len(text.lstrip())
        if text.startswith(opening, begins):
            within, begins = True, begins + len(opening)
        if not within:
            return 0
        closes = text.find(closing, begins)
        return len(text) if closes < 0 else closes + len(closing)

    def split(self, text: str, within: bool = False) -> tuple[str, str]:
        """Return the thoughts and the rest of the text."""
        if self.thoughts is None:
            return "", text
        opening, closing = self.thoughts
        begins = text.lstrip()
        if begins.startswith(opening):
            within, text = True, begins.removeprefix(opening)
        if not within:
            return "", text
        thought, _, content = text.partition(closing)
        return thought.strip(), content.lstrip("\n")

    def write(self, message: Message, *, within: bool = False) -> str:
        """Return the text that the model would have sampled for `message`."""
        content = self.tool_format.write(message.content, message.tool_calls)
        return self._join_thoughts(message.reasoning, content, within=within)

    def _join_thoughts(self, thought: str, content: str, *, within: bool = False) -> str:
        """Return thoughts and the rest as one text: the reverse of `split`."""
        if self.thoughts is None or not (thought or within):
            return content
        opening, closing = self.thoughts
        return f"{'' if within else opening}\n{thought}\n{closing}\n\n{content}"

    def begins_within(self, prompt_end: str) -> bool:
        """Return whether a prompt with this end leaves the model inside its thoughts."""
        return self.thoughts is not None and prompt_end.rstrip().endswith(self.thoughts[0])

    def for_template(
        self, tokenizer: ChatTokenizer, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> tuple[list[Message], Sequence[ToolSpec]]:
        """Return messages and tools for the chat template: unchanged if the template writes tools, calls and thoughts
        itself.

        Otherwise the tools are described at the end of the system message (which is added if there is none), calls and
        thoughts become text as the model writes them, and the answers of tools become user messages.
        """
        out = list(messages)
        if self.thoughts is not None and any(m.reasoning for m in out) and not tokenizer.writes_thoughts:
            out = [replace(m, content=self._join_thoughts(m.reasoning, m.content), reasoning="") for m in out]
        if tokenizer.writes_tools and tokenizer.writes_calls:
            return out, tools
        if not tokenizer.writes_calls:
            out = [self._as_text(message) for message in out]
        if tools and not tokenizer.writes_tools:
            description = self.tool_format.describe(tools)
            if out and out[0].role == "system":
                out[0] = replace(out[0], content=f"{out[0].content}\n\n{description}")
            else:
                out.insert(0, Message("system", description))
            tools = ()
        return out, tools

    def _as_text(self, message: Message) -> Message:
        if message.tool_calls:
            return replace(message, content=self.tool_format.write(message.content, message.tool_calls), tool_calls=())
        return Message("user", message.content) if message.role == "tool" else message
