"""What requests of all APIs are made of: the pydantic models that read them, and by which `openapi.py` describes them.

A model declares what the endpoint reads. A key that is null counts as absent, and keys that no model declares are
ignored; those of the request itself are kept for the record (`ModelCall.ignored`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    PlainValidator,
    ValidationError,
)
from pydantic.json_schema import SkipJsonSchema

from ale.messages import MODEL, Message, ModelCall, Role, ToolSpec
from ale_endpoint.dialects.pictures import AnyAttachment, Attachment, StrictTool, left_out, with_parts
from ale_endpoint.dialects.request_errors import describe_errors

M = TypeVar("M", bound=BaseModel)
Text = InstanceOf[str]
"""Any text: pydantic's own `str` refuses half a character, which agents write."""
RoleName = Literal["system", "developer", "user", "assistant", "tool", "function"]
ROLES = {"developer": "system", "function": "tool"}
ChoiceWord = Literal["auto", "none", "required"]


def whole_number(value: Any) -> Any:
    """`8.0` is 8, as JSON Schema has it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def list_of_texts(value: Any) -> tuple[str, ...]:
    """A text, or a list of texts; empty ones are left out."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError("must be a text or a list of texts")
    return tuple(filter(None, texts))


def other_than(*values: Any) -> AfterValidator:
    """Refuses these values."""

    def check(value: Any) -> Any:
        if value in values:
            raise ValueError(f"must not be one of {', '.join(map(str, values))}")
        return value

    return AfterValidator(check)


Positive = Annotated[int, Field(ge=1), BeforeValidator(whole_number)]
Texts = Annotated[tuple[str, ...], PlainValidator(list_of_texts, json_schema_input_type=str | list[str])]


class Shape(BaseModel):
    """An object of a request."""

    model_config = ConfigDict(strict=True)


class Part(Protocol):
    """A part of a content, as an API has it."""

    def to_parts(self) -> list[str | Attachment]:
        """Its texts and attachments."""
        ...


class TextPart(Shape):
    """A part of a content."""

    text: Text

    def to_parts(self) -> list[str | Attachment]:
        """The text."""
        return [self.text]


class RefusalPart(TextPart):
    """A part in which the model refuses to answer; it is read as a text part."""

    text: Text = Field(alias="refusal")


Content = Text | list[Text | TextPart | RefusalPart | SkipJsonSchema[AnyAttachment]] | None
"""The content of a message. Pictures are not in the OpenAPI document: settings decide whether they are taken."""


def content_parts(content: str | Sequence[str | Part] | None) -> list[str | Attachment]:
    """The texts and attachments of a content."""
    if content is None or isinstance(content, str):
        return [content or ""]
    return [each for part in content for each in ([part] if isinstance(part, str) else part.to_parts())]


def content_text(content: str | Sequence[str | Part] | None) -> str:
    """The text of a content, with marks in the place of attachments."""
    return "".join(part if isinstance(part, str) else left_out(part) for part in content_parts(content))


class ThinkingPart(Shape):
    """What a model of Mistral thought, in the content of its message."""

    type: Literal["thinking"]
    thinking: Content = None

    def to_parts(self) -> list[str | Attachment]:
        """Nothing: thoughts are no content."""
        return []


class SpokenMessage(Shape):
    """A message in OpenAI's APIs."""

    role: RoleName
    content: Text | list[Text | ThinkingPart | TextPart | RefusalPart | SkipJsonSchema[AnyAttachment]] | None = None

    def to_message(self) -> Message:
        """The message in ALE's own terms."""
        role = cast(Role, ROLES.get(self.role, self.role))
        if not isinstance(self.content, list):  # most are texts, and there may be thousands of them
            return Message(role, self.content or "")
        return with_parts(Message(role), content_parts(self.content))


class Parameters(Shape):
    """A JSON Schema of an object."""

    model_config = ConfigDict(extra="allow")
    properties: dict[Any, Any] | None = None


class Function(Shape):
    """A tool that the agent runs."""

    name: Text
    description: Text | None = None
    parameters: Parameters | None = None
    strict: bool | None = None

    def to_tool(self) -> ToolSpec:
        """The tool in ALE's own terms; its schema is whole, whatever the agent left out."""
        given = self.parameters or Parameters()
        schema = {"type": "object", "properties": given.properties or {}, **(given.model_extra or {})}
        if self.strict is None:
            return ToolSpec(self.name, self.description or "", schema)
        return StrictTool(self.name, self.description or "", schema, self.strict)


class NamedTool(Shape):
    """The tool that the policy is to call."""

    name: Text


class AllowedTools(Shape):
    """The tools that the policy may call, of those that the request brings."""

    mode: Literal["auto", "required"] = "auto"
    tools: list[dict[Any, Any]]

    def names(self) -> list[str]:
        """The names of those that have one: others are tools that a server would run."""
        named = (next((t[k] for k in ("function", "custom") if isinstance(t.get(k), dict)), t) for t in self.tools)
        return [name for tool in named if isinstance(name := tool.get("name"), str)]


class CalledFunction(Shape):
    """A tool call in an earlier message of the assistant."""

    name: Text
    arguments: Any = None

    @property
    def arguments_text(self) -> str:
        """The arguments as JSON text, which they may be already."""
        given = {} if self.arguments is None or self.arguments == "" else self.arguments
        return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


class ApiRequest(Shape):
    """What requests of all APIs hold."""

    model_config = ConfigDict(extra="allow")
    model: Text | None = None
    stream: bool | None = None

    def to_call(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        choice: str | NamedTool | AllowedTools | None,
        **more: Any,
    ) -> ModelCall:
        """The request in ALE's own terms. Raises `ValueError` where it chooses a tool that it does not bring."""
        if choice is not None and not isinstance(choice, str):
            names = choice.names() if isinstance(choice, AllowedTools) else [choice.name]
            known = {tool.name for tool in tools}
            if unknown := next((name for name in names if name not in known), None):
                raise ValueError(f"'tool_choice' names {unknown!r}, which is not among the tools")
            if isinstance(choice, AllowedTools):
                tools, choice = [tool for tool in tools if tool.name in names], choice.mode
            else:
                choice = choice.name
        general: dict[str, Any] = {
            "stream": bool(self.stream),
            "model": self.model or MODEL,
            "ignored": self.model_extra or {},
        }
        return ModelCall(tuple(messages), tuple(tools), choice or "auto", **general, **more)


def parse(model: type[M], value: Any, where: str = "") -> M:
    """A value as a model. Raises `ValueError` with a sentence that says what is wrong, and where."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise ValueError(describe_errors(error.errors(include_url=False), value, where)) from None
