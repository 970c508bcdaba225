"""Anthropic messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from ale.messages import ChatReply, Message, ModelCall, ReplyPiece, Role, ToolCall, ToolSpec
from ale_endpoint.dialects.dialect import Dialect, Event, StreamWriter, pieces, rest_of
from ale_endpoint.dialects.field_tables import ANTHROPIC_MESSAGES
from ale_endpoint.dialects.pictures import AnyAttachment, Attachment, Document, with_parts
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
SIGNATURE = "ale"
EMPTY: dict[str, dict[str, Any]] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
}
"""What a block of a stream begins with, before its deltas."""
DELTAS = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
SERVER_TYPES = r"^((web_search|web_fetch|code_execution|tool_search_tool|advisor)_.*|mcp_toolset)$"
ERROR_MARK = "[error] "
"""It begins the answer of a tool that failed (`is_error`), which no other API can say."""
B = TypeVar("B")


class DataSource(Shape):
    """All of a file, in base64."""

    type: Literal["base64"]
    data: Text
    media_type: Text = "application/pdf"


class TextSource(Shape):
    """All of a text."""

    type: Literal["text"]
    data: Text


class ContentSource(Shape):
    """A document of several parts."""

    type: Literal["content"]
    content: Content


class DistantSource(Shape):
    """A file that is elsewhere."""

    type: Literal["url", "file"]
    url: Text | None = None
    file_id: Text | None = None


class DocumentBlock(Shape):
    """A document: a text, or a file such as a PDF."""

    type: Literal["document"]
    source: Annotated[DataSource | TextSource | ContentSource | DistantSource, Field(discriminator="type")]
    title: Text | None = None
    context: Text | None = None

    def to_parts(self) -> list[str | Attachment]:
        """Its texts and attachments, after its title and what is said of it."""
        head = "".join(f"{line}\n" for line in (self.title, self.context) if line)
        return [*([head] if head else []), *self._own_parts()]

    def _own_parts(self) -> list[str | Attachment]:
        source = self.source
        if isinstance(source, DataSource):
            return [Document(f"data:{source.media_type};base64,{source.data}", self.title or "document")]
        if isinstance(source, DistantSource):
            return [Document(source.url, self.title, source.file_id)]
        return [source.data] if isinstance(source, TextSource) else content_parts(source.content)


class SearchResult(Shape):
    """What a search of the agent has found."""

    type: Literal["search_result"]
    title: Text | None = None
    source: Text | None = None
    content: Content = None

    def to_parts(self) -> list[str | Attachment]:
        """Title and source, then the texts."""
        head = "".join(f"{line}\n" for line in (self.title, self.source) if line)
        return [head, *content_parts(self.content)]


class ToolReference(Shape):
    """A tool that a search of the agent has found; the request has it anyway."""

    type: Literal["tool_reference"]
    tool_name: Text

    def to_parts(self) -> list[str | Attachment]:
        """Its name."""
        return [f"{self.tool_name}\n"]


AnyBlock = (
    SkipJsonSchema[DocumentBlock]
    | SearchResult
    | ToolReference
    | TextPart
    | RefusalPart
    | SkipJsonSchema[AnyAttachment]
)
"""What a message of either role and a tool's answer may hold beside plain text."""
Blocks = Text | list[Text | AnyBlock] | None


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
    content: Blocks = None
    tool_use_id: Text | None = None
    is_error: bool | None = None

    def to_message(self) -> Message:
        """The message in ALE's own terms."""
        parts = [*([ERROR_MARK] if self.is_error else []), *content_parts(self.content)]
        return with_parts(Message("tool", tool_call_id=self.tool_use_id or ""), parts)


class BlockMessage(Shape, Generic[B]):
    """A message of one role; `B` are the blocks that only this role has."""

    role: Role
    content: Text | list[Text | Thinking | RedactedThinking | B | AnyBlock] | None = None


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
    input_examples: list[Any] | None = None

    def to_tool(self) -> ToolSpec:
        tool = super().to_tool()
        examples = {"examples": self.input_examples} if self.input_examples else {}
        return replace(tool, parameters={**tool.parameters, **examples})


class ServerTool(Shape):
    """A tool that the server would run itself; here it is left out."""

    type: Annotated[str, Field(pattern=SERVER_TYPES)]


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
    fields = ANTHROPIC_MESSAGES

    def read(self, body: Mapping[str, Any]) -> ModelCall:
        if (last := last_role(body)) == "assistant":
            raise ValueError(
                f"the last message is of the role {last}: a reply that somebody else began is not the model's own; end "
                "with a message of the user or an answer of a tool"
            )
        return self.read_prompt(body)

    def read_prompt(self, body: Mapping[str, Any]) -> ModelCall:
        """Read a request that need not end where a reply begins. Raises `ValueError`."""
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
        usage = {"input_tokens": reply.prompt_tokens, "output_tokens": reply.completion_tokens}
        return {
            **message_of(call, call_id, blocks(reply), usage),
            "stop_reason": "stop_sequence" if reply.stop is not None else STOPS[reply.finish_reason],
            "stop_sequence": reply.stop,
        }

    def writer(self, call: ModelCall, call_id: str) -> StreamWriter:
        return BlockWriter(call, call_id)

    def error(self, status: int, code: str, message: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": KINDS.get(status, "api_error"), "message": message}}


class TokenCount(AnthropicMessages):
    """`POST /v1/messages/count_tokens`: the same request, of any length."""

    path: ClassVar[str] = f"{AnthropicMessages.path}/count_tokens"

    def read(self, body: Mapping[str, Any]) -> ModelCall:
        return self.read_prompt(body)


class BlockWriter(StreamWriter):
    """Writes the blocks of a message: thoughts, a text, calls. Each begins, has deltas and ends."""

    def __init__(self, call: ModelCall, call_id: str) -> None:
        super().__init__(call, call_id)
        self._begun = False
        self._sent: dict[str, str] = {}
        """The text so far of the blocks that have begun, by their types."""
        self._open = ""
        """The type of the block that has begun and not ended."""

    def add(self, piece: ReplyPiece) -> Iterator[Event]:
        yield from self._begin_message(piece.prompt_tokens)
        for kind, text in (("thinking", piece.reasoning), ("text", piece.content)):
            if text:
                yield from self._begin(kind)
                yield self._delta(kind, text)

    def end(self, replies: Sequence[ChatReply]) -> Iterator[Event]:
        whole = AnthropicMessages().answer(self.call, replies, self.call_id)
        yield from self._begin_message(whole["usage"]["input_tokens"])
        for index, block in enumerate(whole["content"]):
            kind = block["type"]
            if kind in EMPTY and kind != "tool_use":
                if rest := rest_of(block[kind], self._sent.get(kind, "")):
                    yield from self._begin(kind)
                    for piece in pieces(rest):
                        yield self._delta(kind, piece)
                elif kind not in self._sent:
                    yield from self._begin(kind)
                continue
            yield from self._end()
            yield _event("content_block_start", index=index, content_block={**block, **EMPTY[kind]})
            for piece in pieces(json.dumps(block["input"], ensure_ascii=False)):
                delta = {"type": "input_json_delta", "partial_json": piece}
                yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        yield from self._end()
        ended = {key: whole[key] for key in ("stop_reason", "stop_sequence")}
        yield _event("message_delta", delta=ended, usage={"output_tokens": whole["usage"]["output_tokens"]})
        yield _event("message_stop")

    def _begin_message(self, prompt_tokens: int) -> Iterator[Event]:
        if not self._begun:
            self._begun = True
            usage = {"input_tokens": prompt_tokens, "output_tokens": 0}
            yield _event("message_start", message=message_of(self.call, self.call_id, [], usage))

    def _begin(self, kind: str) -> Iterator[Event]:
        if kind not in self._sent:
            yield from self._end()
            self._sent[kind], self._open = "", kind
            block = {"type": kind, **EMPTY[kind]}
            yield _event("content_block_start", index=self._place(kind), content_block=block)

    def _delta(self, kind: str, text: str) -> Event:
        self._sent[kind] += text
        delta, field = DELTAS[kind]
        return _event("content_block_delta", index=self._place(kind), delta={"type": delta, field: text})

    def _end(self) -> Iterator[Event]:
        kind, self._open = self._open, ""
        if kind == "thinking":
            signed = {"type": "signature_delta", "signature": SIGNATURE}
            yield _event("content_block_delta", index=self._place(kind), delta=signed)
        if kind:
            yield _event("content_block_stop", index=self._place(kind))

    def _place(self, kind: str) -> int:
        return list(self._sent).index(kind)


def _event(kind: str, **fields: Any) -> Event:
    return Event({"type": kind, **fields}, kind)


def message_of(
    call: ModelCall, call_id: str, content: list[dict[str, Any]], usage: Mapping[str, int]
) -> dict[str, Any]:
    """A message that has not ended."""
    return {
        "id": f"msg_{call_id}",
        "type": "message",
        "role": "assistant",
        "model": call.model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


def last_role(body: Mapping[str, Any]) -> Any:
    """The role of a request's last message."""
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    return last.get("role") if isinstance(last, Mapping) else None


def blocks(reply: ChatReply) -> list[dict[str, Any]]:
    """The content of an answer."""
    found: list[dict[str, Any]] = []
    if reply.message.reasoning:
        # Clients send blocks back whole; nothing here reads the signature.
        found.append({"type": "thinking", "thinking": reply.message.reasoning, "signature": SIGNATURE})
    if reply.message.content or not reply.message.tool_calls:
        found.append({"type": "text", "text": reply.message.content})
    for made in reply.message.tool_calls:
        found.append({"type": "tool_use", "id": made.id, "name": made.name, "input": made.parsed_arguments()})
    return found


def messages_of(asked: UserMessage | AssistantMessage | SystemMessage) -> list[Message]:
    """One of their messages in ALE's own terms: several, where it answers tool calls."""
    answers: list[Message] = []
    parts: list[str | Attachment] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for block in asked.content if isinstance(asked.content, list) else [asked.content or ""]:
        if isinstance(block, ToolUse):
            calls.append(ToolCall(block.id or "", block.name, json.dumps(block.input or {}, ensure_ascii=False)))
        elif isinstance(block, ToolResult):
            answers.append(block.to_message())
        elif isinstance(block, Thinking):
            thoughts.append(content_text(block.thinking))
        elif not isinstance(block, RedactedThinking):
            parts += content_parts([block])
    if parts or calls or not answers:
        answers.append(with_parts(Message(asked.role, "", tuple(calls), reasoning="".join(thoughts)), parts))
    return answers
