"""Anthropic messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import Field, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from ale.messages import ChatReply, Message, ModelCall, Role, ToolCall
from ale_endpoint.dialects.dialect import Dialect, Event, pieces
from ale_endpoint.dialects.pictures import AnyPicture, Picture, with_parts
from ale_endpoint.dialects.request_models import (
    ApiRequest,
    Content,
    Function,
    NamedTool,
    Parameters,
    Positive,
    RefusalPart,
    Shape,
    Text,
    TextPart,
    Texts,
    content_parts,
    content_text,
    other_than,
    parse,
)

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
EMPTY: dict[str, dict[str, Any]] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
}
"""What a block of a stream begins with, before its deltas."""
DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
OWN_TYPES = ("custom", None)
B = TypeVar("B")


class Thinking(Shape):
    """What the policy thought."""

    type: Literal["thinking"]
    thinking: Content = None


class RedactedThinking(Shape):
    """Thoughts of another model, which cannot be read."""

    type: Literal["redacted_thinking"]


class ToolUse(Shape):
    """A call that the policy made before."""

    type: Literal["tool_use"]
    name: Text
    id: Text | None = None
    input: dict[Any, Any] | None = None


class ToolResult(Shape):
    """What a tool answered."""

    type: Literal["tool_result"]
    content: Content = None
    tool_use_id: Text | None = None


class BlockMessage(Shape, Generic[B]):
    """A message of one role; `B` are the blocks that only this role has."""

    role: Role
    content: (
        Text | list[Text | Thinking | RedactedThinking | B | TextPart | RefusalPart | SkipJsonSchema[AnyPicture]] | None
    ) = None


class UserMessage(BlockMessage[ToolResult]):
    """The user's, or the answers of tools."""

    role: Literal["user"]


class AssistantMessage(BlockMessage[ToolUse]):
    """The policy's."""

    role: Literal["assistant"]


class SystemMessage(BlockMessage[TextPart]):
    """An instruction in the middle of the conversation."""

    role: Literal["system"]


class OwnTool(Function):
    """A tool that the agent runs."""

    type: Literal["custom"] | None = None
    parameters: Parameters | None = Field(None, alias="input_schema")


class ServerTool(Shape):
    """A tool that the server would run itself; here it is left out."""

    name: Text
    type: Annotated[Any, other_than(*OWN_TYPES), WithJsonSchema({"not": {"enum": [*OWN_TYPES]}})]


class ToolChoice(Shape):
    """Whether the policy may or must call a tool."""

    type: Literal["auto", "any", "none"]


class NamedChoice(NamedTool):
    """The tool that the policy must call."""

    type: Literal["tool"]


class MessagesRequest(ApiRequest):
    """What `AnthropicMessages.read` accepts."""

    messages: Annotated[
        list[Annotated[UserMessage | AssistantMessage | SystemMessage, Field(discriminator="role")]],
        Field(min_length=1),
    ]
    system: Content = None
    tools: list[OwnTool | ServerTool] | None = None
    tool_choice: Annotated[ToolChoice | NamedChoice, Field(discriminator="type")] | None = None
    max_tokens: Positive | None = None
    stop_sequences: Texts | None = None


class AnthropicMessages(Dialect):
    """`POST /v1/messages`."""

    path: ClassVar[str] = "/v1/messages"

    request = MessagesRequest

    def read(self, body: Mapping[str, Any]) -> ModelCall:
        asked = parse(MessagesRequest, body)
        messages = [Message("system", text)] if (text := content_text(asked.system)) else []
        for message in asked.messages:
            messages += messages_of(message)
        choice = asked.tool_choice
        return asked.to_call(
            messages,
            [tool.to_tool() for tool in asked.tools or () if isinstance(tool, OwnTool)],
            CHOICES[choice.type] if isinstance(choice, ToolChoice) else choice,
            max_tokens=asked.max_tokens,
            stop=asked.stop_sequences or (),
        )

    def answer(self, call: ModelCall, replies: Sequence[ChatReply], call_id: str) -> dict[str, Any]:
        (reply,) = replies
        return {
            "id": f"msg_{call_id}",
            "type": "message",
            "role": "assistant",
            "model": call.model,
            "content": blocks(reply),
            "stop_reason": "stop_sequence" if reply.stop is not None else STOPS[reply.finish_reason],
            "stop_sequence": reply.stop,
            "usage": {"input_tokens": reply.prompt_tokens, "output_tokens": reply.completion_tokens},
        }

    def events(self, call: ModelCall, replies: Sequence[ChatReply], call_id: str) -> Iterator[Event]:
        whole = self.answer(call, replies, call_id)
        ended = {key: whole[key] for key in ("stop_reason", "stop_sequence")}
        usage = whole["usage"]

        def event(kind: str, **fields: Any) -> Event:
            return Event({"type": kind, **fields}, kind)

        empty = {**whole, "content": [], **dict.fromkeys(ended), "usage": {**usage, "output_tokens": 0}}
        yield event("message_start", message=empty)
        for index, block in enumerate(whole["content"]):
            kind = block["type"]
            yield event("content_block_start", index=index, content_block={**block, **EMPTY[kind]})
            delta, field = DELTAS[kind]
            for piece in pieces(json.dumps(block["input"], ensure_ascii=False) if kind == "tool_use" else block[kind]):
                yield event("content_block_delta", index=index, delta={"type": delta, field: piece})
            if kind == "thinking":
                signed = {"type": "signature_delta", "signature": block["signature"]}
                yield event("content_block_delta", index=index, delta=signed)
            yield event("content_block_stop", index=index)
        yield event("message_delta", delta=ended, usage={"output_tokens": usage["output_tokens"]})
        yield event("message_stop")

    def error(self, status: int, code: str, message: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": KINDS.get(status, "api_error"), "message": message}}


def blocks(reply: ChatReply) -> list[dict[str, Any]]:
    """The content of an answer."""
    found: list[dict[str, Any]] = []
    if reply.message.reasoning:
        # Clients send blocks back whole; nothing here reads the signature.
        found.append({"type": "thinking", "thinking": reply.message.reasoning, "signature": "ale"})
    if reply.message.content or not reply.message.tool_calls:
        found.append({"type": "text", "text": reply.message.content})
    for made in reply.message.tool_calls:
        found.append({"type": "tool_use", "id": made.id, "name": made.name, "input": made.parsed_arguments()})
    return found


def messages_of(asked: UserMessage | AssistantMessage | SystemMessage) -> list[Message]:
    """One of their messages in ALE's own terms: several, where it answers tool calls."""
    answers: list[Message] = []
    parts: list[str | Picture] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for block in asked.content if isinstance(asked.content, list) else [asked.content or ""]:
        if isinstance(block, ToolUse):
            calls.append(ToolCall(block.id or "", block.name, json.dumps(block.input or {}, ensure_ascii=False)))
        elif isinstance(block, ToolResult):
            answer = Message("tool", tool_call_id=block.tool_use_id or "")
            answers.append(with_parts(answer, content_parts(block.content)))
        elif isinstance(block, Thinking):
            thoughts.append(content_text(block.thinking))
        elif not isinstance(block, RedactedThinking):
            parts += content_parts([block])
    if parts or calls or not answers:
        answers.append(with_parts(Message(asked.role, "", tuple(calls), reasoning="".join(thoughts)), parts))
    return answers
