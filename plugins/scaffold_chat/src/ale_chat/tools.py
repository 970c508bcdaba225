"""Python functions as tools: their description for the model, and how a call of one is carried out.

1. The JSON schema is made from the type hints, the descriptions from the docstring. The parameters `sandbox`, `state`
   and `task` are not the model's: the scaffold provides them.
2. A call that names no tool, or whose arguments do not fit the hints, is answered with a sentence and is an illegal
   call; a function that raises or runs out of time is a failed execution. A lost sandbox is neither, and raises.
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, PydanticSchemaGenerationError, ValidationError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema

from ale.messages import ChunkErrorKind, ToolCall, ToolSpec, whole_characters
from ale.registry.user_functions import FunctionFailed, UserFunction, call_function
from ale.registry.validation import describe_error, format_value, one_line_error
from ale_chat.user import Turn

PROVIDED = ("sandbox", "state", "task")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one call: the text that the model sees, and whether the call counts as an error."""

    text: str
    arguments: dict[str, Any]
    error: ChunkErrorKind | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A function that the model may call."""

    function: UserFunction
    spec: ToolSpec
    model: type[BaseModel]
    """It validates the arguments; the names of its fields are aliases, since a parameter may have any name."""

    @property
    def name(self) -> str:
        """Its name for the model."""
        return self.spec.name

    @classmethod
    def of(cls, function: UserFunction) -> FunctionTool:
        """Make a tool of a function. Raises `ValueError` with a sentence if no schema can be made of its hints."""
        doc = docstring_parser.parse(inspect.getdoc(function.function) or "")
        about = {parameter.arg_name: parameter.description or "" for parameter in doc.params}
        fields: dict[str, Any] = {}
        try:
            hints = inspect.get_annotations(function.function, eval_str=True)
            for number, (name, parameter) in enumerate(function.parameters.items()):
                if name not in PROVIDED:
                    default = ... if parameter.default is parameter.empty else parameter.default
                    field = Field(default, alias=name, description=one_line(about.get(name)))
                    fields[f"field{number}"] = (hints.get(name, Any), field)
            model = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
            schema = _without_titles(model.model_json_schema())
        except (NameError, TypeError, PydanticSchemaGenerationError, PydanticInvalidForJsonSchema) as error:
            raise ValueError(
                f"no JSON schema can be made of the type hints of {function.where}: {describe_error(error)}; use types "
                "that JSON has, such as int, str, list[str] and dict"
            ) from None
        text = "\n\n".join(part for part in (doc.short_description, doc.long_description) if part)
        return cls(function, ToolSpec(function.name, text, schema), model)

    def read_arguments(self, call: ToolCall) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the arguments as the model gave them, and as the function gets them. Raises `ValueError` with a
        sentence."""
        try:
            given = call.parsed_arguments()
        except (ValueError, RecursionError) as error:
            raise ValueError(f"The arguments of {self.name} cannot be read: {one_line_error(error)}.") from None
        try:
            values = self.model.model_validate(given)
        except ValidationError as error:
            raise ValueError(f"The call does not fit {self.name}: {self._complaints(error)}.") from None
        names = {key: str(field.alias) for key, field in self.model.model_fields.items()}
        return given, {names[key]: getattr(values, key) for key in values.model_fields_set}

    def _complaints(self, error: ValidationError) -> str:
        known = ", ".join(str(field.alias) for field in self.model.model_fields.values()) or "no arguments"
        found = []
        for item in error.errors(include_url=False):
            place = ".".join(map(str, item["loc"]))
            if item["type"] == "extra_forbidden":
                found.append(f"it takes no '{place}', it takes {known}")
            elif item["type"] == "missing":
                found.append(f"'{place}' is missing")
            else:
                found.append(f"'{place}' is {format_value(item['input'])}: {one_line_error(item['msg']).lower()}")
        return "; ".join(found)


async def run_tool(
    tools: Mapping[str, FunctionTool], call: ToolCall, turn: Turn, timeout_s: float, max_chars: int
) -> Outcome:
    """Carry out one call of the model. Errors of ALE, such as a `SandboxError`, are raised; everything else is an
    answer."""
    tool = tools.get(call.name)
    if tool is None:
        return Outcome(f"There is no tool '{call.name}'; the tools are {', '.join(tools)}.", {}, "illegal_call")
    given: dict[str, Any] = {}
    try:
        given, arguments = tool.read_arguments(call)
    except ValueError as error:
        return Outcome(str(error), given, "illegal_call")
    provided = {"sandbox": turn.sandbox, "state": turn.state, "task": turn.task}
    arguments |= {name: value for name, value in provided.items() if tool.function.names(name)}
    started = time.monotonic()
    failed: ChunkErrorKind | None = None
    try:
        text = as_text(await call_function(tool.function, arguments, timeout_s))
    except FunctionFailed as error:
        text, failed = f"Error: {error.reason}.", "execution_failed"
    return Outcome(cut(text, max_chars), given, failed, time.monotonic() - started)


def as_text(value: Any) -> str:
    """Return a tool's result as a text: itself, or as JSON."""
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        text = str(value)
    return whole_characters(text)


def cut(text: str, max_chars: int) -> str:
    """Return a text without what is over the limit."""
    over = len(text) - max_chars
    return text if over <= 0 else f"{text[:max_chars]}\n[{over} characters cut off]"


def one_line(text: str | None) -> str | None:
    """Return a description on one line, None if there is none."""
    return " ".join(text.split()) or None if text else None


def _without_titles(schema: Any) -> Any:
    """Return a schema without the titles that pydantic adds: they tell the model nothing and cost tokens."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _without_titles(inner) for name, inner in value.items()}
        if key in ("properties", "$defs")
        else _without_titles(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
    }
