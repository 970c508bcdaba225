"""The tool-format contract: how tool calls stand in the text of a family of models.

`read` finds the calls in sampled text, `write` makes the text for replies that nobody sampled (a demonstrator's, an
expert's), `describe` tells a model of its tools whose chat template has no place for them. The rest (ids of calls,
thoughts, what becomes of text that cannot be read) is the endpoint's, alike for all formats.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from ale.messages import ToolCall, ToolSpec
from ale.specs.driver import Driver


@dataclass(frozen=True, slots=True)
class FoundCall:
    """A call in sampled text: the tool's name, and its arguments as the JSON text of an object."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ReadReply:
    """What a model said, and the calls that it made in saying it."""

    content: str
    calls: tuple[FoundCall, ...] = ()


class ToolFormat(Driver, ABC):
    """One form of tool calls. Stateless: one instance reads the replies of all sessions."""

    @abstractmethod
    def read(self, text: str, tools: Sequence[ToolSpec]) -> ReadReply:
        """The calls in one reply, without its stop token; the content is what is left.

        Raises `ValueError` with a sentence, which the agent may show to the model, where something is meant as a call and
        cannot be read: the endpoint then gives all of the text to the agent, and marks the chunk as an illegal call. Text
        that was cut off must never be read as another call than the whole would have been. `tools` are those that the model
        was told of, for formats whose arguments do not say of which type they are; that there is no such tool is no mistake
        here.
        """

    @abstractmethod
    def write(self, content: str, calls: Sequence[ToolCall]) -> str:
        """The text that a model would have sampled: `read` gives the same calls of it, and the same content, where the form
        has a place for content beside calls."""

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """What stands in the system message where the model's chat template does not write tools itself."""
        lines = "\n".join(json.dumps(tool.to_openai()["function"], ensure_ascii=False) for tool in tools)
        example = self.write("", [ToolCall("", "NAME", '{"ARGUMENT": "VALUE"}')])
        return (
            f"You can call these tools, each described by a JSON Schema:\n{lines}\n\nA call is written so:\n{example}"
        )
