"""OpenAI Responses, without storage: every request brings the whole conversation (`store: false`)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ale.messages import ChatReply, Message, ModelCall, ReplyPiece, ToolCall
from ale_endpoint.dialects.chat_completions import logprob_entries
from ale_endpoint.dialects.custom_tools import custom_arguments
from ale_endpoint.dialects.dialect import Dialect, Event, StreamWriter, pieces, rest_of
from ale_endpoint.dialects.field_tables import RESPONSES
from ale_endpoint.dialects.pictures import with_parts
from ale_endpoint.dialects.request_errors import NEEDED
from ale_endpoint.dialects.request_models import (
    AllowedTools,
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
TEXTS = {"message": "output_text", "reasoning": "reasoning_text"}
IDS = {"message": "msg", "reasoning": "rs"}
LOGPROBS = "message.output_text.logprobs"
"""What `include` names for the log-probabilities of an answer's tokens."""
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
        arguments = self.arguments_text if self.type == "function_call" else custom_arguments(self.input)
        return ToolCall(self.call_id or self.id or "", flat_name(self.name, self.namespace), arguments)


class OutputItem(Shape):
    """What a tool answered."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    output: Content | dict[Any, Any] | bool | int | float = None
    call_id: Text | None = None

    def to_message(self) -> Message:
        """The message in ALE's own terms."""
        output = self.output if isinstance(self.output, str | list) else json.dumps(self.output)
        return with_parts(Message("tool", tool_call_id=self.call_id or ""), content_parts(output))


class ReasoningItem(Shape):
    """What the policy thought."""

    type: Literal["reasoning"]
    content: Content = None
    summary: Content = None

    def to_text(self) -> str:
        """The thoughts; their summary, where there is nothing else."""
        return content_text(self.content) or content_text(self.summary)


Item = MessageItem | CallItem | OutputItem | ReasoningItem | SearchCall | SearchOutput
Items = Annotated[list[Item], Field(min_length=1, json_schema_extra=SAYS_SOMETHING)]


class ChosenTools(AllowedTools):
    """The tools that the policy may call."""

    type: Literal["allowed_tools"]


class ResponsesRequest(ApiRequest):
    """What `Responses.read` accepts. Choices that name no tool are of tools that the server would run."""

    input: Text | Items
    instructions: Text | None = None
    tools: list[AnyTool] | None = None
    tool_choice: (
        Annotated[ChoiceWord | ChosenTools | NamedTool | dict[Any, Any], Field(union_mode="left_to_right")] | None
    ) = None
    max_output_tokens: Positive | None = None
    include: list[Any] | None = None


class Responses(Dialect):
    """`POST /v1/responses`."""

    path: ClassVar[str] = "/v1/responses"

    request = ResponsesRequest
    fields = RESPONSES

    def read(self, body: Mapping[str, Any]) -> ModelCall:
        asked = parse(ResponsesRequest, body)
        given = [MessageItem(role="user", content=asked.input)] if isinstance(asked.input, str) else asked.input
        messages = read_items(given)
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
            logprobs=LOGPROBS in (asked.include or ()),
        )
        return tools.complete(call)

    def answer(self, call: ModelCall, replies: Sequence[ChatReply], call_id: str) -> dict[str, Any]:
        (reply,) = replies
        cut = CUTS.get(reply.finish_reason)
        return {
            **response_of(call, call_id, "incomplete" if cut else "completed", items(call, reply, call_id)),
            "incomplete_details": {"reason": cut} if cut else None,
            "usage": {
                "input_tokens": reply.prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": reply.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": reply.prompt_tokens + reply.completion_tokens,
            },
        }

    def writer(self, call: ModelCall, call_id: str) -> StreamWriter:
        return ItemWriter(call, call_id)

    def error_events(self, status: int, code: str, message: str) -> Iterator[Event]:
        yield Event({"type": "error", "sequence_number": 0, "code": code, "message": message, "param": None}, "error")


class ItemWriter(StreamWriter):
    """Writes the items of a response: thoughts, a message, calls. Each begins, has deltas and ends."""

    def __init__(self, call: ModelCall, call_id: str) -> None:
        super().__init__(call, call_id)
        self._number = 0
        self._sent: dict[str, str] = {}
        """The text so far of the items that have begun, by their types."""
        self._ended: set[str] = set()

    def add(self, piece: ReplyPiece) -> Iterator[Event]:
        yield from self._begin_response()
        if piece.reasoning:
            yield from self._begin(reasoning_item(self.call_id, ""))
            yield self._delta("reasoning", piece.reasoning)
        if piece.content:
            if "reasoning" in self._sent and "reasoning" not in self._ended:
                yield from self._end(reasoning_item(self.call_id, self._sent["reasoning"]))
            yield from self._begin(message_item(self.call_id, ""))
            yield self._delta("message", piece.content)

    def end(self, replies: Sequence[ChatReply]) -> Iterator[Event]:
        whole = Responses().answer(self.call, replies, self.call_id)
        yield from self._begin_response()
        for index, item in enumerate(whole["output"]):
            kind = item["type"]
            if kind in ("reasoning", "message"):
                if kind not in self._ended:
                    yield from self._begin(item)
                    for piece in pieces(rest_of(item["content"][0]["text"], self._sent[kind])):
                        yield self._delta(kind, piece)
                    yield from self._end(item)
                continue
            at = {"item_id": item["id"], "output_index": index}
            yield self._added(index, item)
            if kind != "tool_search_call":
                field = "input" if kind == "custom_tool_call" else "arguments"
                name = "custom_tool_call_input" if field == "input" else "function_call_arguments"
                for piece in pieces(item[field]):
                    yield self._event(f"response.{name}.delta", **at, delta=piece)
                extra = {} if field == "input" else {"name": item["name"]}
                yield self._event(f"response.{name}.done", **at, **{field: item[field]}, **extra)
            yield self._event("response.output_item.done", output_index=index, item=item)
        yield self._event(f"response.{whole['status']}", response=whole)

    def _event(self, kind: str, **fields: Any) -> Event:
        self._number += 1
        return Event({"type": kind, "sequence_number": self._number - 1, **fields}, kind)

    def _begin_response(self) -> Iterator[Event]:
        if self._number == 0:
            empty = response_of(self.call, self.call_id, "in_progress", [])
            yield self._event("response.created", response=empty)
            yield self._event("response.in_progress", response=empty)

    def _added(self, index: int, item: Mapping[str, Any]) -> Event:
        begun = {**item, **EMPTY[item["type"]], "status": "in_progress"}
        return self._event("response.output_item.added", output_index=index, item=begun)

    def _begin(self, item: Mapping[str, Any]) -> Iterator[Event]:
        kind = item["type"]
        if kind in self._sent:
            return
        self._sent[kind] = ""
        yield self._added(self._place(kind)["output_index"], {**item, "id": self._place(kind)["item_id"]})
        if kind == "message":
            part = {"type": "output_text", "text": "", "annotations": []}
            yield self._event("response.content_part.added", **self._place(kind), content_index=0, part=part)

    def _delta(self, kind: str, text: str) -> Event:
        self._sent[kind] += text
        more: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        return self._event(f"response.{TEXTS[kind]}.delta", **self._place(kind), content_index=0, delta=text, **more)

    def _end(self, item: Mapping[str, Any]) -> Iterator[Event]:
        kind, part = item["type"], item["content"][0]
        self._ended.add(kind)
        at = self._place(kind)
        more: dict[str, Any] = {"logprobs": part["logprobs"]} if kind == "message" else {}
        yield self._event(f"response.{TEXTS[kind]}.done", **at, content_index=0, text=part["text"], **more)
        if kind == "message":
            yield self._event("response.content_part.done", **at, content_index=0, part=part)
        yield self._event("response.output_item.done", output_index=at["output_index"], item=item)

    def _place(self, kind: str) -> dict[str, Any]:
        """The id of an item, and its place: thoughts are the first item, and a message the one after them."""
        index = list(self._sent).index(kind)
        return {"item_id": f"{IDS[kind]}_{self.call_id}", "output_index": index}


def response_of(call: ModelCall, call_id: str, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    """A response without its usage."""
    return {
        "id": f"resp_{call_id}",
        "object": "response",
        "created_at": time.time(),
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": call.model,
        "output": output,
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": call.tool_choice if call.tool_choice in ("auto", "none", "required") else "auto",
        "tools": [],
        "top_p": None,
        "store": False,
        "usage": None,
    }


def reasoning_item(call_id: str, text: str) -> dict[str, Any]:
    """The item of thoughts."""
    content = [{"type": "reasoning_text", "text": text}]
    return {"type": "reasoning", "id": f"rs_{call_id}", "summary": [], "content": content, "status": "completed"}


def message_item(call_id: str, text: str, logprobs: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """The item of a reply's text."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}
    return {"type": "message", "id": f"msg_{call_id}", "role": "assistant", "content": [part], "status": "completed"}


def items(call: ModelCall, reply: ChatReply, call_id: str) -> list[dict[str, Any]]:
    """The items of a reply, complete."""
    found: list[dict[str, Any]] = []
    message = reply.message
    if message.reasoning:
        found.append(reasoning_item(call_id, message.reasoning))
    if message.content or not message.tool_calls:
        found.append(message_item(call_id, message.content, logprob_entries(reply.tokens)))
    for i, made in enumerate(message.tool_calls):
        item = {**call_item(call, made), "id": f"fc_{call_id}_{i}", "call_id": made.id, "status": "completed"}
        found.append(item)
    return found


def read_items(given: Sequence[Item]) -> list[Message]:
    """Read the items as messages: thoughts and calls belong to the assistant's message beside them."""
    messages: list[Message] = []
    thought: str | None = None  # with thoughts, also empty ones, a new reply begins
    for item in given:
        if isinstance(item, ReasoningItem):
            thought = (thought or "") + item.to_text()
            continue
        if isinstance(item, CallItem | SearchCall):
            last = messages[-1] if messages else None
            if last is None or last.role != "assistant" or thought is not None:
                messages.append(Message("assistant", reasoning=thought or ""))
            messages[-1] = replace(messages[-1], tool_calls=(*messages[-1].tool_calls, item.to_call()))
        else:
            message = item.to_message()
            messages.append(replace(message, reasoning=thought or "") if message.role == "assistant" else message)
        thought = None
    return messages
