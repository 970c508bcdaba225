"""OpenAI Responses, without storage: every request brings the whole conversation (`store: false`)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from ale.endpoint.dialects.chat import ROLES
from ale.endpoint.dialects.dialect import (
    Dialect,
    Event,
    ModelCall,
    arguments_text,
    common,
    content_text,
    kind_of,
    listed,
    named,
    openai_error,
    optional,
    pieces,
    positive,
    schema,
    text_of,
)
from ale.messages import ChatReply, Message, ToolCall, ToolSpec

READ = {"input", "instructions", "tools", "tool_choice", "max_output_tokens", "previous_response_id"}
CUSTOM_SCHEMA = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


class Responses(Dialect):
    """`POST /v1/responses`."""

    path: ClassVar[str] = "/v1/responses"

    def read(self, body: Mapping[str, Any]) -> ModelCall:
        if body.get("previous_response_id") is not None:
            raise ValueError("'previous_response_id' is not known: nothing is stored here; send the whole conversation")
        messages: list[Message] = []
        given = body.get("input")
        if isinstance(given, str):
            messages.append(Message("user", given))
        else:
            for i, item in enumerate(listed(body, "input")):
                self._take(messages, item, f"input[{i}]")
        messages = [message for message in messages if not is_thought(message)]  # nothing was said after them
        if not messages:
            raise ValueError("'input' must be a text, or a list with at least one item that says something")
        instructions = optional(body, "instructions", str, "a text")
        if instructions:
            messages.insert(0, Message("system", instructions))
        tools, custom = read_tools(listed(body, "tools"))
        return ModelCall(
            tuple(messages), tuple(tools), read_choice(body.get("tool_choice"), {tool.name for tool in tools}),
            positive(body, "max_output_tokens"), custom=frozenset(custom), **common(body, READ),
        )  # fmt: skip

    def _take(self, messages: list[Message], item: Any, where: str) -> None:
        """Add an item to the messages; calls belong to the assistant's message before them."""
        if not isinstance(item, Mapping):
            raise ValueError(f"{where} must be an object, not {kind_of(item)}")
        kind = item.get("type", "message")
        if kind == "message":
            role = item.get("role")
            if not isinstance(role, str) or role not in ROLES:
                raise ValueError(f"{where}.role is {role!r}; known roles are {', '.join(ROLES)}")
            said = Message(ROLES[role], content_text(item.get("content"), f"{where}.content"))
            if said.role == "assistant" and messages and is_thought(messages[-1]):
                said = replace(said, reasoning=messages.pop().reasoning)
            messages.append(said)
        elif kind in ("function_call", "custom_tool_call"):
            made = read_call(item, kind == "custom_tool_call", where)
            last = messages[-1] if messages else None
            if last is not None and last.role == "assistant":
                messages[-1] = replace(last, tool_calls=(*last.tool_calls, made))
            else:
                messages.append(Message("assistant", "", (made,)))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            output = item.get("output")
            text = content_text(output, f"{where}.output") if isinstance(output, str | list) else json.dumps(output)
            messages.append(Message("tool", text, tool_call_id=text_of(item, "call_id", where)))
        elif kind == "reasoning":
            thought = content_text(item.get("content"), f"{where}.content")
            messages.append(Message("assistant", reasoning=thought))
        else:
            raise ValueError(f"{where} is of type {kind!r}, which this endpoint does not know")

    # --- answers

    def answer(self, call: ModelCall, replies: Sequence[ChatReply], call_id: str) -> dict[str, Any]:
        (reply,) = replies
        return response(call, call_id, reply, [done(item) for item in items(call, reply, call_id)])

    def events(self, call: ModelCall, replies: Sequence[ChatReply], call_id: str) -> Iterator[Event]:
        (reply,) = replies
        number = 0

        def event(kind: str, **fields: Any) -> Event:
            nonlocal number
            number += 1
            return Event({"type": kind, "sequence_number": number - 1, **fields}, kind)

        yield event("response.created", response=response(call, call_id, None, []))
        yield event("response.in_progress", response=response(call, call_id, None, []))
        finished = []
        for index, item in enumerate(items(call, reply, call_id)):
            at = {"item_id": item["id"], "output_index": index}
            yield event("response.output_item.added", output_index=index, item=begun(item))
            if item["type"] == "message":
                text = item["content"][0]["text"]
                part = {"type": "output_text", "text": "", "annotations": []}
                yield event("response.content_part.added", **at, content_index=0, part=part)
                for piece in pieces(text):
                    yield event("response.output_text.delta", **at, content_index=0, delta=piece, logprobs=[])
                yield event("response.output_text.done", **at, content_index=0, text=text, logprobs=[])
                yield event("response.content_part.done", **at, content_index=0, part={**part, "text": text})
            elif item["type"] == "reasoning":
                text = item["content"][0]["text"]
                for piece in pieces(text):
                    yield event("response.reasoning_text.delta", **at, content_index=0, delta=piece)
                yield event("response.reasoning_text.done", **at, content_index=0, text=text)
            else:
                custom = item["type"] == "custom_tool_call"
                name, field = (
                    ("custom_tool_call_input", "input") if custom else ("function_call_arguments", "arguments")
                )
                for piece in pieces(item[field]):
                    yield event(f"response.{name}.delta", **at, delta=piece)
                extra = {} if custom else {"name": item["name"]}
                yield event(f"response.{name}.done", **at, **{field: item[field]}, **extra)
            finished.append(done(item))
            yield event("response.output_item.done", output_index=index, item=finished[-1])
        kind = "response.incomplete" if reply.finish_reason == "length" else "response.completed"
        yield event(kind, response=response(call, call_id, reply, finished))

    def error(self, status: int, code: str, message: str) -> dict[str, Any]:
        return openai_error(status, code, message)

    def error_events(self, status: int, code: str, message: str) -> Iterator[Event]:
        yield Event({"type": "error", "sequence_number": 0, "code": code, "message": message, "param": None}, "error")


def items(call: ModelCall, reply: ChatReply, call_id: str) -> list[dict[str, Any]]:
    """What a reply consists of, complete."""
    found: list[dict[str, Any]] = []
    message = reply.message
    if message.reasoning:
        thought = [{"type": "reasoning_text", "text": message.reasoning}]
        found.append({"type": "reasoning", "id": f"rs_{call_id}", "summary": [], "content": thought})
    if message.content or not message.tool_calls:
        part = {"type": "output_text", "text": message.content, "annotations": [], "logprobs": []}
        found.append({"type": "message", "id": f"msg_{call_id}", "role": "assistant", "content": [part]})
    for i, made in enumerate(message.tool_calls):
        base = {"id": f"fc_{call_id}_{i}", "call_id": made.id, "name": made.name}
        if made.name in call.custom:
            found.append({"type": "custom_tool_call", **base, "input": custom_input(made)})
        else:
            found.append({"type": "function_call", **base, "arguments": made.arguments})
    return found


def is_thought(message: Message) -> bool:
    """Whether a message holds thoughts alone: what was said after them comes in the next item."""
    return bool(message.role == "assistant" and message.reasoning and not message.content and not message.tool_calls)


def done(item: dict[str, Any]) -> dict[str, Any]:
    """An item that has ended."""
    return {**item, "status": "completed"}


def begun(item: dict[str, Any]) -> dict[str, Any]:
    """An item of which nothing has come yet."""
    empty: dict[str, Any] = {"input": ""}
    if item["type"] in ("message", "reasoning"):
        empty = {"content": []}
    elif item["type"] == "function_call":
        empty = {"arguments": ""}
    return {**item, **empty, "status": "in_progress"}


def response(call: ModelCall, call_id: str, reply: ChatReply | None, output: list[dict[str, Any]]) -> dict[str, Any]:
    """The response object; of a call under way where there is no reply yet."""
    cut = reply is not None and reply.finish_reason == "length"
    status = "in_progress" if reply is None else "incomplete" if cut else "completed"
    used = None
    if reply is not None:
        used = {
            "input_tokens": reply.prompt_tokens, "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": reply.completion_tokens, "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        }  # fmt: skip
    return {
        "id": f"resp_{call_id}", "object": "response", "created_at": time.time(), "status": status, "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None, "instructions": None,
        "metadata": {}, "model": call.model, "output": output, "parallel_tool_calls": True, "temperature": None,
        "tool_choice": call.tool_choice if call.tool_choice in ("auto", "none", "required") else "auto",
        "tools": [], "top_p": None, "store": False, "usage": used,
    }  # fmt: skip


def custom_input(made: ToolCall) -> str:
    """The text for a tool that takes a text: what the policy gave as `input`, or else all that it gave."""
    try:
        found = made.parsed_arguments().get("input")
    except ValueError:
        return made.arguments
    return found if isinstance(found, str) else made.arguments


def read_call(item: Mapping[str, Any], custom: bool, where: str) -> ToolCall:
    """A call that the conversation holds."""
    name, given = item.get("name"), item.get("input" if custom else "arguments")
    if not isinstance(name, str):
        raise ValueError(f"{where} needs the 'name' of a tool")
    if custom:
        arguments = json.dumps({"input": "" if given is None else given}, ensure_ascii=False)
    else:
        arguments = arguments_text(given)
    ids = [text_of(item, key, where) for key in ("call_id", "id")]
    return ToolCall(ids[0] or ids[1], name, arguments)


def read_tools(raw: list[Any]) -> tuple[list[ToolSpec], set[str]]:
    """The tools, and which of them take a text. Tools that the server would run itself are left out: there are none here."""
    tools: list[ToolSpec] = []
    custom: set[str] = set()
    for i, tool in enumerate(raw):
        where = f"tools[{i}]"
        if not isinstance(tool, Mapping):
            raise ValueError(f"{where} must be an object, not {kind_of(tool)}")
        kind = tool.get("type")
        if kind not in ("function", "custom"):
            continue
        if not isinstance(tool.get("name"), str):
            raise ValueError(f"{where} must have a name")
        parameters = CUSTOM_SCHEMA if kind == "custom" else schema(tool.get("parameters"), f"{where}.parameters")
        tools.append(ToolSpec(tool["name"], text_of(tool, "description", where), parameters))
        if kind == "custom":
            custom.add(tool["name"])
    return tools, custom


def read_choice(raw: Any, names: set[str]) -> str:
    """As in chat completions, but with the tool's name beside its type; objects that name none (of tools that a server runs) are `auto`."""
    if isinstance(raw, Mapping):
        return named(raw["name"], names) if isinstance(raw.get("name"), str) else "auto"
    if raw is not None and raw not in ("auto", "none", "required"):
        raise ValueError(f"'tool_choice' is {raw!r}; it may be auto, none, required, or name a tool")
    return raw or "auto"
