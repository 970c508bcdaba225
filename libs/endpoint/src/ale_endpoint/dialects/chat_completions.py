"""OpenAI chat completions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from ale.messages import ChatReply, Message, ModelCall, ReplyPiece, TokenLogprob, ToolCall, ToolSpec
from ale_endpoint.dialects.custom_tools import CustomFormat, custom_arguments, custom_input, custom_tool
from ale_endpoint.dialects.dialect import Dialect, Event, StreamWriter, pieces, rest_of
from ale_endpoint.dialects.field_tables import CHAT_COMPLETIONS
from ale_endpoint.dialects.fields import OTHERS
from ale_endpoint.dialects.pictures import with_more
from ale_endpoint.dialects.request_models import (
    AllowedTools,
    ApiRequest,
    CalledFunction,
    ChoiceWord,
    Function,
    NamedTool,
    Positive,
    Shape,
    SpokenMessage,
    Text,
    Texts,
    ThinkingPart,
    content_text,
    parse,
    whole_number,
)

MOST_CHOICES = 32


class CalledText(Shape):
    """A call of a tool that takes a text."""

    name: Text
    input: Text = ""


class CustomCall(Shape):
    """A call of a custom tool in an earlier message of the assistant."""

    type: Literal["custom"]
    id: Text | None = None
    custom: CalledText

    def to_call(self) -> ToolCall:
        """The call in ALE's own terms; a text is an argument named `input`."""
        return ToolCall(self.id or "", self.custom.name, custom_arguments(self.custom.input))


class ChatCall(Shape):
    """A tool call in an earlier message of the assistant."""

    id: Text | None = None
    function: CalledFunction

    def to_call(self) -> ToolCall:
        """The call in ALE's own terms."""
        return ToolCall(self.id or "", self.function.name, self.function.arguments_text)


class ChatMessage(SpokenMessage):
    """A message of a conversation."""

    tool_calls: list[CustomCall | ChatCall] | None = None
    tool_call_id: Text | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: Any = None

    def to_message(self) -> Message:
        message = super().to_message()
        if not message.content and isinstance(self.refusal, str) and message.role == "assistant":
            message = replace(message, content=self.refusal)
        calls = [call.to_call() for call in self.tool_calls or ()]
        thought = next((text for text in (self.reasoning_content, self.reasoning) if isinstance(text, str)), "")
        if not thought and isinstance(self.content, list):
            parts = (part for part in self.content if isinstance(part, ThinkingPart))
            thought = "".join(content_text(part.thinking) for part in parts)
        thought = thought if message.role == "assistant" else ""
        return replace(message, tool_calls=tuple(calls), tool_call_id=self.tool_call_id, reasoning=thought)


class ChatTool(Shape):
    """A function that may be called."""

    function: Function

    def to_tool(self) -> ToolSpec:
        """The tool in ALE's own terms."""
        return self.function.to_tool()


class CustomFunction(Shape):
    """What is said of a custom tool."""

    name: Text
    description: Text | None = None
    format: CustomFormat | None = None


class CustomTool(Shape):
    """A tool that takes a text."""

    type: Literal["custom"]
    custom: CustomFunction

    def to_tool(self) -> ToolSpec:
        """The tool in ALE's own terms."""
        return custom_tool(self.custom.name, self.custom.description, self.custom.format)


class ChosenFunction(Shape):
    """The function that the policy is to call."""

    function: NamedTool

    def chosen(self) -> NamedTool:
        """What is chosen."""
        return self.function


class ChosenCustom(Shape):
    """The custom tool that the policy is to call."""

    type: Literal["custom"]
    custom: NamedTool

    def chosen(self) -> NamedTool:
        """What is chosen."""
        return self.custom


class ChosenTools(Shape):
    """The tools that the policy may call."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools

    def chosen(self) -> AllowedTools:
        """What is chosen."""
        return self.allowed_tools


class StreamOptions(Shape):
    """Whether a stream ends with the token usage."""

    include_usage: Any = None


class ChatRequest(ApiRequest):
    """The body of `POST /v1/chat/completions`."""

    messages: list[ChatMessage] = Field(min_length=1)
    tools: list[CustomTool | ChatTool] | None = None
    tool_choice: ChoiceWord | ChosenTools | ChosenCustom | ChosenFunction | NamedTool | None = None
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    stop: Texts | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES), BeforeValidator(whole_number)] | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    functions: None = None


class ChatCompletions(Dialect):
    """`POST /v1/chat/completions`."""

    path: ClassVar[str] = "/v1/chat/completions"

    request = ChatRequest
    fields = CHAT_COMPLETIONS

    def read(self, body: Mapping[str, Any]) -> ModelCall:
        asked = parse(ChatRequest, body)
        choice = asked.tool_choice
        return asked.to_call(
            [
                with_more(message.to_message(), carried_fields(raw))
                for message, raw in zip(asked.messages, body["messages"], strict=True)
            ],
            [tool.to_tool() for tool in asked.tools or ()],
            choice.chosen() if isinstance(choice, ChosenFunction | ChosenCustom | ChosenTools) else choice,
            max_tokens=asked.max_completion_tokens or asked.max_tokens,
            stop=asked.stop or (),
            n=asked.n or 1,
            stream_usage=bool(asked.stream_options and asked.stream_options.include_usage),
            logprobs=bool(asked.logprobs),
            custom=frozenset(tool.custom.name for tool in asked.tools or () if isinstance(tool, CustomTool)),
        )

    def answer(self, call: ModelCall, replies: Sequence[ChatReply], call_id: str) -> dict[str, Any]:
        choices = []
        for i, reply in enumerate(replies):
            message = reply.message.to_openai()
            if reply.message.tool_calls:
                message["content"] = message["content"] or None
                message["tool_calls"] = [call_entry(call, made) for made in reply.message.tool_calls]
            logprobs = {"content": logprob_entries(reply.tokens), "refusal": None} if call.logprobs else None
            choices.append({"index": i, "message": message, "finish_reason": reply.finish_reason, "logprobs": logprobs})
        # Prompt tokens are counted once, completion tokens summed over the choices.
        prompt, sampled = replies[0].prompt_tokens, sum(reply.completion_tokens for reply in replies)
        return {
            "id": f"chatcmpl-{call_id}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": call.model,
            "choices": choices,
            "usage": {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled},
        }

    def writer(self, call: ModelCall, call_id: str) -> StreamWriter:
        return ChunkWriter(call, call_id)

    def error_events(self, status: int, code: str, message: str) -> Iterator[Event]:
        yield Event(self.error(status, code, message))


class ChunkWriter(StreamWriter):
    """Writes chunks: each is a piece of one choice."""

    def __init__(self, call: ModelCall, call_id: str) -> None:
        super().__init__(call, call_id)
        self._created = int(time.time())
        self._sent: dict[int, tuple[str, str]] = {}
        """The thoughts and the text of each choice so far."""

    def add(self, piece: ReplyPiece) -> Iterator[Event]:
        yield from self._begin(piece.index, "")
        thought, text = self._sent[piece.index]
        self._sent[piece.index] = thought + piece.reasoning, text + piece.content
        if piece.reasoning:
            yield self._chunk(piece.index, {"reasoning_content": piece.reasoning})
        if piece.content:
            yield self._chunk(piece.index, {"content": piece.content})

    def end(self, replies: Sequence[ChatReply]) -> Iterator[Event]:
        for i, reply in enumerate(replies):
            message = reply.message
            yield from self._begin(i, None if message.tool_calls else "")
            thought, text = self._sent[i]
            for piece in pieces(rest_of(message.reasoning, thought)):
                yield self._chunk(i, {"reasoning_content": piece})
            for piece in pieces(rest_of(message.content, text)):
                yield self._chunk(i, {"content": piece})
            for number, made in enumerate(message.tool_calls):
                entry = call_entry(self.call, made)
                kind, field = ("custom", "input") if entry["type"] == "custom" else ("function", "arguments")
                begun = {"index": number, **entry, kind: {**entry[kind], field: ""}}
                yield self._chunk(i, {"tool_calls": [begun]})
                for piece in pieces(entry[kind][field]):
                    yield self._chunk(i, {"tool_calls": [{"index": number, kind: {field: piece}}]})
            logprobs = {"content": logprob_entries(reply.tokens), "refusal": None} if self.call.logprobs else None
            yield self._chunk(i, {}, reply.finish_reason, logprobs)
        if self.call.stream_usage:
            prompt, sampled = replies[0].prompt_tokens, sum(reply.completion_tokens for reply in replies)
            usage = {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}
            yield self._event([], usage=usage)
        yield Event("[DONE]")

    def _begin(self, index: int, content: str | None) -> Iterator[Event]:
        if index not in self._sent:
            self._sent[index] = "", ""
            yield self._chunk(index, {"role": "assistant", "content": content})

    def _chunk(self, index: int, delta: Mapping[str, Any], finish: str | None = None, logprobs: Any = None) -> Event:
        choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
        return self._event([choice], **({"usage": None} if self.call.stream_usage else {}))

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> Event:
        base = {"id": f"chatcmpl-{self.call_id}", "object": "chat.completion.chunk", "created": self._created}
        return Event({**base, "model": self.call.model, "choices": choices, **more})


def carried_fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a message that only another server reads."""
    known = CHAT_COMPLETIONS["message"]
    assert isinstance(known, Mapping)
    named = {key: known.get(key) or known[OTHERS] for key, value in raw.items() if value is not None}
    return {key: raw[key] for key, rule in named.items() if rule.upstream == "carried"}


def call_entry(call: ModelCall, made: ToolCall) -> dict[str, Any]:
    """A tool call of a reply."""
    if made.name in call.custom:
        return {"id": made.id, "type": "custom", "custom": {"name": made.name, "input": custom_input(made)}}
    return {"id": made.id, "type": "function", "function": {"name": made.name, "arguments": made.arguments}}


def logprob_entries(tokens: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Tokens with their log-probabilities, as OpenAI's APIs write them."""
    return [
        {**_logprob_entry(token), "top_logprobs": [_logprob_entry(each) for each in token.likely]} for token in tokens
    ]


def _logprob_entry(token: TokenLogprob) -> dict[str, Any]:
    data = None if token.data is None else list(token.data)
    return {"token": token.text, "logprob": token.logprob, "bytes": data}


def read_message(raw: Mapping[str, Any], where: str) -> Message:
    """One message. Raises `ValueError`."""
    return parse(ChatMessage, raw, where).to_message()


def read_tool(raw: Mapping[str, Any], where: str) -> ToolSpec:
    """A tool that may be called. Raises `ValueError`."""
    return parse(ChatTool, raw, where).function.to_tool()
