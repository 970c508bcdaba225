"""The tool-format contract: how a family of models writes tool calls as text.

`read` finds the calls in sampled text, `write` makes the text for replies that the policy did not sample (a
demonstrator's, an expert's), and `describe` lists the tools for a model whose chat template has no place for them. The
endpoint does the rest alike for all formats (ids of calls, thoughts, unreadable text).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from ale.messages import ToolCall, ToolSpec


@dataclass(frozen=True, slots=True)
class FoundCall:
    """A call that was found in sampled text: the tool's name, and its arguments as the JSON text of an object."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ReadReply:
    """The text of a model's reply, and the calls in it."""

    content: str
    calls: tuple[FoundCall, ...] = ()


class ToolFormat(ABC):
    """One format of tool calls. It is stateless: one instance reads the replies of all sessions."""

    @abstractmethod
    def read(self, text: str, tools: Sequence[ToolSpec]) -> ReadReply:
        """Return the calls in one reply, which comes without its stop token; the content is the rest of the text.

        Raises `ValueError` with a sentence, which the agent may show to the model, if some text is meant as a call and
        cannot be read: the endpoint then gives all of the text to the agent and marks the chunk as an illegal call.
        Text that was cut off must never be read as a different call from that of the whole text. `tools` are those that
        the model could call, for formats whose arguments do not show their types; a call of an unknown tool is no error
        here."""

    @abstractmethod
    def write(self, content: str, calls: Sequence[ToolCall]) -> str:
        """Return the text that a model would have sampled: `read` finds the same calls in it, and the same content, if
        the format has a place for content beside calls."""

    def certain_text(self, text: str) -> int:
        """Return how much of the beginning of a reply is content, whatever comes after: where a call may have begun,
        the text is not certain. Replies of a format that does not say are streamed once they are complete."""
        return 0

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """Return the text for the system message if the model's chat template does not write tools itself."""
        lines = "\n".join(json.dumps(tool.to_openai()["function"], ensure_ascii=False) for tool in tools)
        example = self.write("", [ToolCall("", "NAME", '{"ARGUMENT": "VALUE"}')])
        return (
            f"You can call these tools, each described by a JSON Schema:\n{lines}\n\nA call is written so:\n{example}"
        )
