"""Anthropic messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from ale.endpoint.dialects.dialect import (
    Dialect,
    Event,
    ModelCall,
    common,
    content_text,
    kind_of,
    listed,
    named,
    optional,
    pieces,
    positive,
    schema,
    text_of,
    texts,
)
from ale.messages import ChatReply, Message, ToolCall, ToolSpec

READ = {"messages", "system", "tools", "tool_choice", "max_tokens", "stop_sequences"}
KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip
STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class AnthropicMessages(Dialect):
    """`POST /v1/messages`."""

    path: ClassVar[str] = "/v1/messages"

    def read(self, body: Mapping[str, Any]) -> ModelCall:
        raw = listed(body, "messages")
        if not raw:
            raise ValueError("'messages' must be a list with at least one message")
        messages: list[Message] = []
        system = content_text(body.get("system"), "system")
        if system:
            messages.append(Message("system", system))
        for i, message in enumerate(raw):
            messages += read_messages(message, f"messages[{i}]")
        tools = [read_tool(tool, f"tools[{i}]") for i, tool in enumerate(listed(body, "tools"))]
        found = [tool for tool in tools if tool is not None]
        return ModelCall(
            tuple(messages), tuple(found), read_choice(body.get("tool_choice"), {tool.name for tool in found}),
            positive(body, "max_tokens"), texts(body.get("stop_sequences"), "stop_sequences"), **common(body, READ),
        )  # fmt: skip

    def answer(self, call: ModelCall, replies: Sequence[ChatReply], call_id: str) -> dict[str, Any]:
        (reply,) = replies
        ended = {"stop_reason": stop_reason(reply), "stop_sequence": reply.stop}
        return {**head(call, reply, call_id), "content": blocks(reply), **ended, "usage": usage(reply)}

    def events(self, call: ModelCall, replies: Sequence[ChatReply], call_id: str) -> Iterator[Event]:
        (reply,) = replies

        def event(kind: str, **fields: Any) -> Event:
            return Event({"type": kind, **fields}, kind)

        begun = {**head(call, reply, call_id), "content": [], "stop_reason": None, "stop_sequence": None}
        yield event("message_start", message={**begun, "usage": {**usage(reply), "output_tokens": 0}})
        for index, block in enumerate(blocks(reply)):
            if block["type"] == "text":
                yield event("content_block_start", index=index, content_block={"type": "text", "text": ""})
                for piece in pieces(block["text"]):
                    yield event("content_block_delta", index=index, delta={"type": "text_delta", "text": piece})
            elif block["type"] == "thinking":
                yield event(
                    "content_block_start", index=index, content_block={**block, "thinking": "", "signature": ""}
                )
                for piece in pieces(block["thinking"]):
                    yield event("content_block_delta", index=index, delta={"type": "thinking_delta", "thinking": piece})
                signed = {"type": "signature_delta", "signature": block["signature"]}
                yield event("content_block_delta", index=index, delta=signed)
            else:
                yield event("content_block_start", index=index, content_block={**block, "input": {}})
                for piece in pieces(json.dumps(block["input"], ensure_ascii=False)):
                    delta = {"type": "input_json_delta", "partial_json": piece}
                    yield event("content_block_delta", index=index, delta=delta)
            yield event("content_block_stop", index=index)
        ended = {"stop_reason": stop_reason(reply), "stop_sequence": reply.stop}
        yield event("message_delta", delta=ended, usage={"output_tokens": reply.completion_tokens})
        yield event("message_stop")

    def error(self, status: int, code: str, message: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": KINDS.get(status, "api_error"), "message": message}}


def head(call: ModelCall, reply: ChatReply, call_id: str) -> dict[str, Any]:
    """What a message is, but for its content and end."""
    return {"id": f"msg_{call_id}", "type": "message", "role": "assistant", "model": call.model}


def blocks(reply: ChatReply) -> list[dict[str, Any]]:
    """The content of an answer."""
    found: list[dict[str, Any]] = []
    if reply.message.reasoning:
        # Clients send blocks back whole; what the signature says is nobody's concern here.
        found.append({"type": "thinking", "thinking": reply.message.reasoning, "signature": "ale"})
    if reply.message.content or not reply.message.tool_calls:
        found.append({"type": "text", "text": reply.message.content})
    for made in reply.message.tool_calls:
        found.append({"type": "tool_use", "id": made.id, "name": made.name, "input": made.parsed_arguments()})
    return found


def stop_reason(reply: ChatReply) -> str:
    """Why the answer ended, in this API's words."""
    return "stop_sequence" if reply.stop is not None else STOPS[reply.finish_reason]


def usage(reply: ChatReply) -> dict[str, Any]:
    """Tokens."""
    return {"input_tokens": reply.prompt_tokens, "output_tokens": reply.completion_tokens}


def read_messages(raw: Any, where: str) -> list[Message]:
    """One of their messages: several, where it answers tool calls."""
    if not isinstance(raw, Mapping):
        raise ValueError(f"{where} must be an object, not {kind_of(raw)}")
    role, content = raw.get("role"), raw.get("content")
    if role not in ("user", "assistant", "system"):
        raise ValueError(f"{where}.role is {role!r}; known roles are user, assistant and system")
    if content is None or isinstance(content, str):
        return [Message(role, content or "")]
    if not isinstance(content, list):
        raise ValueError(f"{where}.content must be text or a list of blocks, not {kind_of(content)}")
    answers: list[Message] = []
    said: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for i, block in enumerate(content):
        at = f"{where}.content[{i}]"
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "tool_use" and role == "assistant":
            calls.append(read_call(block, at))
        elif kind == "tool_result" and role == "user":
            text = content_text(block.get("content"), f"{at}.content")
            answers.append(Message("tool", text, tool_call_id=text_of(block, "tool_use_id", at)))
        elif kind == "thinking":
            thoughts.append(content_text(block.get("thinking"), f"{at}.thinking"))
        elif kind == "redacted_thinking":
            continue  # of another model, and unreadable
        else:
            said.append(content_text([block], f"{where}.content"))
    if said or calls or not answers:
        answers.append(Message(role, "".join(said), tuple(calls), reasoning="".join(thoughts)))
    return answers


def read_call(block: Mapping[str, Any], where: str) -> ToolCall:
    """A tool call of an assistant's message."""
    if not isinstance(block.get("name"), str):
        raise ValueError(f"{where} needs the 'name' of a tool")
    given = optional(block, "input", dict, "an object") or {}
    return ToolCall(text_of(block, "id", where), block["name"], json.dumps(given, ensure_ascii=False))


def read_tool(raw: Any, where: str) -> ToolSpec | None:
    """A tool that may be called; None for those that the server would run itself: there are none here."""
    if not isinstance(raw, Mapping) or not isinstance(raw.get("name"), str):
        raise ValueError(f"{where} must be an object with a name")
    if raw.get("type") not in (None, "custom"):
        return None
    parameters = schema(raw.get("input_schema"), f"{where}.input_schema")
    return ToolSpec(raw["name"], text_of(raw, "description", where), parameters)


def read_choice(raw: Any, names: set[str]) -> str:
    """What the agent wants of the tools."""
    if raw is None:
        return "auto"
    kind = raw.get("type") if isinstance(raw, Mapping) else None
    if kind == "tool":
        return named(raw.get("name"), names)
    words = {"auto": "auto", "any": "required", "none": "none"}
    if not isinstance(kind, str) or kind not in words:
        raise ValueError("'tool_choice' must be an object whose type is auto, any, none or tool")
    return words[kind]
