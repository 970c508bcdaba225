"""OpenAI Responses, without storage: every request brings the whole conversation (`store: false`)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ale.messages import ChatReply, Message, ModelCall, ToolCall
from ale_endpoint.dialects.dialect import Dialect, Event, pieces
from ale_endpoint.dialects.pictures import with_parts
from ale_endpoint.dialects.request_errors import NEEDED
from ale_endpoint.dialects.request_models import (
    ApiRequest,
    CalledFunction,
    ChoiceWord,
    Content,
    NamedTool,
    Positive,
    Shape,
    SpokenMessage,
    Text,
    content_parts,
    content_text,
    parse,
)
from ale_endpoint.dialects.responses_tools import (
    AnyTool,
    SearchCall,
    SearchOutput,
    ToolList,
    call_item,
    flat_name,
)

EMPTY: dict[str, dict[str, Any]] = {
    "message": {"content": []},
    "reasoning": {"content": []},
    "function_call": {"arguments": ""},
    "custom_tool_call": {"input": ""},
    "tool_search_call": {"arguments": {}},
}
"""What an item of a stream begins with, before its deltas."""
CUTS = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why a response is incomplete, by its finish reason."""
SAYS_SOMETHING = {"contains": {"not": {"required": ["type"], "properties": {"type": {"const": "reasoning"}}}}}


class MessageItem(SpokenMessage):
    """A message of a conversation."""

    type: Literal["message"] = "message"


class CallItem(CalledFunction):
    """A call of a tool that takes JSON (`arguments`), or of one that takes a text (`input`)."""

    type: Literal["function_call", "custom_tool_call"]
    namespace: Text | None = None
    input: Any = None
    id: Text | None = None
    call_id: Text | None = None

    def to_call(self) -> ToolCall:
        """The call in ALE's own terms; a text is an argument named `input`."""
        custom = json.dumps({"input": "" if self.input is None else self.input}, ensure_ascii=False)
        arguments = self.arguments_text if self.type == "function_call" else custom
        return ToolCall(self.call_id or self.id or "", flat_name(self.name, self.namespace), arguments)


class OutputItem(Shape):
    """What a tool answered."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    output: Content | dict[Any, Any] | bool | int | float = None
    call_id: Text | None = None


class ReasoningItem(Shape):
    """What the policy thought."""

    type: Literal["reasoning"]
    content: Content = None


Item = MessageItem | CallItem | OutputItem | ReasoningItem | SearchCall | SearchOutput
Items = Annotated[list[Item], Field(min_length=1, json_schema_extra=SAYS_SOMETHING)]


class ResponsesRequest(ApiRequest):
    """What `Responses.read` accepts. Choices that name no tool are of tools that the server would run."""

    input: Text | Items
    instructions: Text | None = None
    tools: list[AnyTool] | None = None
    tool_choice: Annotated[ChoiceWord | NamedTool | dict[Any, Any], Field(union_mode="left_to_right")] | None = None
    max_output_tokens: Positive | None = None
    previous_response_id: None = None


class Responses(Dialect):
    """`POST /v1/responses`."""

    path: ClassVar[str] = "/v1/responses"

    request = ResponsesRequest

    def read(self, body: Mapping[str, Any]) -> ModelCall:
        if body.get("previous_response_id") is not None:
            raise ValueError("'previous_response_id' is not known: nothing is stored here; send the whole conversation")
        asked = parse(ResponsesRequest, body)
        messages: list[Message] = []
        given = [MessageItem(role="user", content=asked.input)] if isinstance(asked.input, str) else asked.input
        for item in given:
            add_item(messages, item)
        messages = [message for message in messages if not is_thought(message)]  # nothing was said after them
        if not messages:
            raise ValueError(f"'input' {NEEDED['input']}")
        if asked.instructions:
            messages.insert(0, Message("system", asked.instructions))
        found = [tool for item in given if isinstance(item, SearchOutput) for tool in item.tools or ()]
        tools = ToolList(asked.tools or (), found)
        call = asked.to_call(
            messages,
            tools.specs(),
            None if isinstance(asked.tool_choice, dict) else asked.tool_choice,
            max_tokens=asked.max_output_tokens,
            custom=tools.custom(),
        )
        return tools.complete(call)

    def answer(self, call: ModelCall, replies: Sequence[ChatReply], call_id: str) -> dict[str, Any]:
        (reply,) = replies
        cut = CUTS.get(reply.finish_reason)
        return {
            "id": f"resp_{call_id}",
            "object": "response",
            "created_at": time.time(),
            "status": "incomplete" if cut else "completed",
            "error": None,
            "incomplete_details": {"reason": cut} if cut else None,
            "instructions": None,
            "metadata": {},
            "model": call.model,
            "output": items(call, reply, call_id),
            "parallel_tool_calls": True,
            "temperature": None,
            "tool_choice": call.tool_choice if call.tool_choice in ("auto", "none", "required") else "auto",
            "tools": [],
            "top_p": None,
            "store": False,
            "usage": {
                "input_tokens": reply.prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": reply.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": reply.prompt_tokens + reply.completion_tokens,
            },
        }

    def events(self, call: ModelCall, replies: Sequence[ChatReply], call_id: str) -> Iterator[Event]:
        whole = self.answer(call, replies, call_id)
        empty = {**whole, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
        number = 0

        def event(kind: str, **fields: Any) -> Event:
            nonlocal number
            number += 1
            return Event({"type": kind, "sequence_number": number - 1, **fields}, kind)

        yield event("response.created", response=empty)
        yield event("response.in_progress", response=empty)
        for index, item in enumerate(whole["output"]):
            at = {"item_id": item["id"], "output_index": index}
            begun = {**item, **EMPTY[item["type"]], "status": "in_progress"}
            yield event("response.output_item.added", output_index=index, item=begun)
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
            elif item["type"] != "tool_search_call":
                field = "input" if item["type"] == "custom_tool_call" else "arguments"
                name = "custom_tool_call_input" if field == "input" else "function_call_arguments"
                for piece in pieces(item[field]):
                    yield event(f"response.{name}.delta", **at, delta=piece)
                extra = {} if field == "input" else {"name": item["name"]}
                yield event(f"response.{name}.done", **at, **{field: item[field]}, **extra)
            yield event("response.output_item.done", output_index=index, item=item)
        yield event(f"response.{whole['status']}", response=whole)

    def error_events(self, status: int, code: str, message: str) -> Iterator[Event]:
        yield Event({"type": "error", "sequence_number": 0, "code": code, "message": message, "param": None}, "error")


def items(call: ModelCall, reply: ChatReply, call_id: str) -> list[dict[str, Any]]:
    """The items of a reply, complete."""
    found: list[dict[str, Any]] = []
    message = reply.message
    if message.reasoning:
        thought = [{"type": "reasoning_text", "text": message.reasoning}]
        found.append({"type": "reasoning", "id": f"rs_{call_id}", "summary": [], "content": thought})
    if message.content or not message.tool_calls:
        part = {"type": "output_text", "text": message.content, "annotations": [], "logprobs": []}
        found.append({"type": "message", "id": f"msg_{call_id}", "role": "assistant", "content": [part]})
    for i, made in enumerate(message.tool_calls):
        found.append({**call_item(call, made), "id": f"fc_{call_id}_{i}", "call_id": made.id})
    return [{**item, "status": "completed"} for item in found]


def is_thought(message: Message) -> bool:
    """Whether a message holds thoughts alone: what was said after them comes in the next item."""
    return bool(message.role == "assistant" and message.reasoning and not message.content and not message.tool_calls)


def add_item(messages: list[Message], item: Item) -> None:
    """Add an item to the messages; calls belong to the assistant's message before them."""
    last = messages[-1] if messages else None
    if isinstance(item, MessageItem):
        message = item.to_message()
        if message.role == "assistant" and last is not None and is_thought(last):
            message = replace(message, reasoning=messages.pop().reasoning)
        messages.append(message)
    elif isinstance(item, OutputItem):
        output = item.output if isinstance(item.output, str | list) else json.dumps(item.output)
        messages.append(with_parts(Message("tool", tool_call_id=item.call_id or ""), content_parts(output)))
    elif isinstance(item, ReasoningItem):
        messages.append(Message("assistant", reasoning=content_text(item.content)))
    elif isinstance(item, SearchOutput):
        messages.append(Message("tool", item.to_text(), tool_call_id=item.call_id or ""))
    elif last is not None and last.role == "assistant":
        messages[-1] = replace(last, tool_calls=(*last.tool_calls, item.to_call()))
    else:
        messages.append(Message("assistant", "", (item.to_call(),)))
