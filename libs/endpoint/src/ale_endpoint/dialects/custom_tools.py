"""Tools that take a text (`custom`): for the model they are functions with one argument, `input`."""

from __future__ import annotations

import json
from typing import Any

from ale.messages import ToolCall, ToolSpec
from ale_endpoint.dialects.request_models import Shape, Text

CUSTOM_SCHEMA = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


class CustomFormat(Shape):
    """What the text must be: any, or one of a grammar."""

    type: Text | None = None
    grammar: dict[Any, Any] | None = None
    definition: Text | None = None
    syntax: Text | None = None

    def to_text(self) -> str:
        """Return a sentence for the tool's description; an empty one for any text."""
        given = self.grammar or {"definition": self.definition, "syntax": self.syntax}
        if self.type != "grammar" or not isinstance(given.get("definition"), str):
            return ""
        return f"The input follows this grammar ({given.get('syntax') or 'lark'}):\n{given['definition']}"


def custom_tool(name: str, description: str | None, form: CustomFormat | None) -> ToolSpec:
    """Return the function in a custom tool's place."""
    texts = (description, form.to_text() if form is not None else "")
    return ToolSpec(name, "\n\n".join(filter(None, texts)), CUSTOM_SCHEMA)


def custom_arguments(text: Any) -> str:
    """Return the arguments of the function for a text."""
    return json.dumps({"input": "" if text is None else text}, ensure_ascii=False)


def custom_input(made: ToolCall) -> str:
    """Return the text of a call: what the policy gave as `input`, or else all that it gave."""
    try:
        found = made.parsed_arguments().get("input")
    except ValueError:
        return made.arguments
    return found if isinstance(found, str) else made.arguments
