"""A reply between text and message: thoughts, tool calls, and what becomes of text that cannot be read.

1. What stands between the marks of thoughts at the beginning of a reply is `Message.reasoning`. Where the prompt itself ends
   with the opening mark, the reply begins inside the thoughts.
2. What is left is read by the model's `ToolFormat`. Where that says that a call cannot be read, all of it is content, and
   `illegal` says why: no text is lost.
3. A model whose chat template has no place for tools or calls is told of them in messages that every template can write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ale.endpoint.tokenizer import ChatTokenizer
from ale.endpoint.tool_formats import Hermes
from ale.errors import AleError, PluginError
from ale.messages import Message, ToolCall, ToolSpec
from ale.specs.driver import DriverContext, PluginConfig
from ale.specs.tool_format import ToolFormat
from ale.validation import named

Marks = tuple[str, str]
THOUGHTS: Marks = ("<think>", "</think>")


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """An assistant message read from sampled text; `illegal` is a sentence where a call could not be read."""

    message: Message
    illegal: str | None = None


class ReplyForm:
    """How a model writes its replies. Stateless."""

    def __init__(self, tool_format: ToolFormat | None = None, thoughts: Marks | None = THOUGHTS) -> None:
        self.tool_format = tool_format or Hermes(PluginConfig(), DriverContext())
        self.thoughts = thoughts

    def read(
        self, text: str, call_prefix: str, tools: Sequence[ToolSpec] = (), *, calls: bool = True, within: bool = False
    ) -> ParsedReply:
        """The sampled text of one reply, without its stop token.

        Ids of calls are `call_prefix` and a number, so that they are unique in the conversation and reproducible. Without
        `calls` none are looked for; `within` says that the reply begins inside the thoughts.
        """
        thought, said = self.split(text, within)
        if not calls:
            return ParsedReply(Message("assistant", said, reasoning=thought))
        try:
            read = self.tool_format.read(said, tools)
        except ValueError as error:
            return ParsedReply(Message("assistant", said, reasoning=thought), str(error))
        except AleError:
            raise
        except Exception as error:
            name = type(self.tool_format).__name__
            raise PluginError(f"The tool format {name} crashed: {named(error)}.") from error
        made = tuple(ToolCall(f"{call_prefix}_{i}", c.name, c.arguments) for i, c in enumerate(read.calls))
        return ParsedReply(Message("assistant", read.content, made, reasoning=thought))

    def split(self, text: str, within: bool = False) -> tuple[str, str]:
        """Thoughts and the rest."""
        if self.thoughts is None:
            return "", text
        opening, closing = self.thoughts
        begins = text.lstrip()
        if begins.startswith(opening):
            within, text = True, begins.removeprefix(opening)
        if not within:
            return "", text
        thought, _, said = text.partition(closing)
        return thought.strip(), said.lstrip("\n")

    def write(self, message: Message, *, within: bool = False) -> str:
        """The text that the model would have sampled for `message`."""
        said = self.tool_format.write(message.content, message.tool_calls)
        if self.thoughts is None or not (message.reasoning or within):
            return said
        opening, closing = self.thoughts
        return f"{'' if within else opening}\n{message.reasoning}\n{closing}\n\n{said}"

    def begins_within(self, prompt_end: str) -> bool:
        """Whether a prompt that ends so leaves the model inside its thoughts."""
        return self.thoughts is not None and prompt_end.rstrip().endswith(self.thoughts[0])

    def shown(
        self, tokenizer: ChatTokenizer, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> tuple[list[Message], Sequence[ToolSpec]]:
        """Messages and tools as the chat template is given them: as they are, where it writes tools and calls itself.

        Else the tools are described at the end of the system message (one more message, where there is none), calls are
        written into the text as the model writes them, and what a tool answered is the user's.
        """
        if tokenizer.writes_tools and tokenizer.writes_calls:
            return list(messages), tools
        out = list(messages)
        if not tokenizer.writes_calls:
            out = [self._as_text(message) for message in out]
        if tools and not tokenizer.writes_tools:
            told = self.tool_format.describe(tools)
            if out and out[0].role == "system":
                out[0] = replace(out[0], content=f"{out[0].content}\n\n{told}")
            else:
                out.insert(0, Message("system", told))
            tools = ()
        return out, tools

    def _as_text(self, message: Message) -> Message:
        if message.tool_calls:
            return replace(message, content=self.tool_format.write(message.content, message.tool_calls), tool_calls=())
        return Message("user", message.content) if message.role == "tool" else message
