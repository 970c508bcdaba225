"""OpenAI chat completions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from ale.messages import ChatReply, Message, ModelCall, ToolCall, ToolSpec
from ale_endpoint.dialects.dialect import Dialect, Event, pieces
from ale_endpoint.dialects.request_models import (
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
    parse,
    whole_number,
)

MOST_CHOICES = 32


class ChatCall(Shape):
    """A tool call in an earlier message of the assistant."""

    id: Text | None = None
    function: CalledFunction


class ChatMessage(SpokenMessage):
    """A message of a conversation."""

    tool_calls: list[ChatCall] | None = None
    tool_call_id: Text | None = None
    reasoning_content: Any = None
    reasoning: Any = None

    def to_message(self) -> Message:
        message = super().to_message()
        calls = [ToolCall(c.id or "", c.function.name, c.function.arguments_text) for c in self.tool_calls or ()]
        thought = next((text for text in (self.reasoning_content, self.reasoning) if isinstance(text, str)), "")
        thought = thought if message.role == "assistant" else ""
        return replace(message, tool_calls=tuple(calls), tool_call_id=self.tool_call_id, reasoning=thought)


class ChatTool(Shape):
    """A function that may be called."""

    function: Function


class ChosenFunction(Shape):
    """The function that the policy is to call."""

    function: NamedTool


class StreamOptions(Shape):
    """Whether a stream ends with the token usage."""

    include_usage: Any = None


class ChatRequest(ApiRequest):
    """The body of `POST /v1/chat/completions`."""

    messages: list[ChatMessage] = Field(min_length=1)
    tools: list[ChatTool] | None = None
    tool_choice: ChoiceWord | ChosenFunction | NamedTool | None = None
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

    def read(self, body: Mapping[str, Any]) -> ModelCall:
        if body.get("functions") is not None:
            raise ValueError("'functions' is not known: this API has long had 'tools' for them; send these")
        asked = parse(ChatRequest, body)
        choice = asked.tool_choice
        return asked.to_call(
            [message.to_message() for message in asked.messages],
            [tool.function.to_tool() for tool in asked.tools or ()],
            choice.function if isinstance(choice, ChosenFunction) else choice,
            max_tokens=asked.max_completion_tokens or asked.max_tokens,
            stop=asked.stop or (),
            n=asked.n or 1,
            stream_usage=bool(asked.stream_options and asked.stream_options.include_usage),
            logprobs=bool(asked.logprobs),
        )

    def answer(self, call: ModelCall, replies: Sequence[ChatReply], call_id: str) -> dict[str, Any]:
        choices = []
        for i, reply in enumerate(replies):
            message = reply.message.to_openai()
            if reply.message.tool_calls and not reply.message.content:
                message["content"] = None
            logprobs = {"content": token_logprobs(reply), "refusal": None} if call.logprobs else None
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

    def events(self, call: ModelCall, replies: Sequence[ChatReply], call_id: str) -> Iterator[Event]:
        whole = self.answer(call, replies, call_id)
        tail = {"usage": None} if call.stream_usage else {}
        base = {**whole, "object": "chat.completion.chunk"}
        del base["usage"]

        def event(index: int, delta: Mapping[str, Any], finish: str | None = None, logprobs: Any = None) -> Event:
            choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
            return Event({**base, "choices": [choice], **tail})

        for i, reply in enumerate(replies):
            yield event(i, {"role": "assistant", "content": None if reply.message.tool_calls else ""})
            for piece in pieces(reply.message.reasoning):
                yield event(i, {"reasoning_content": piece})
            for piece in pieces(reply.message.content):
                yield event(i, {"content": piece})
            for number, made in enumerate(reply.message.tool_calls):
                began = {"index": number, "id": made.id, "type": "function"}
                yield event(i, {"tool_calls": [{**began, "function": {"name": made.name, "arguments": ""}}]})
                for piece in pieces(made.arguments):
                    yield event(i, {"tool_calls": [{"index": number, "function": {"arguments": piece}}]})
            yield event(i, {}, reply.finish_reason, whole["choices"][i]["logprobs"])
        if call.stream_usage:
            yield Event({**base, "choices": [], "usage": whole["usage"]})
        yield Event("[DONE]")

    def error_events(self, status: int, code: str, message: str) -> Iterator[Event]:
        yield Event(self.error(status, code, message))


def token_logprobs(reply: ChatReply) -> list[dict[str, Any]]:
    """The log-probability of each sampled token, at temperature 1; no alternatives are known."""
    return [
        {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
        for text, logprob in reply.tokens
    ]


def read_message(raw: Mapping[str, Any], where: str) -> Message:
    """One message. Raises `ValueError`."""
    return parse(ChatMessage, raw, where).to_message()


def read_tool(raw: Mapping[str, Any], where: str) -> ToolSpec:
    """A tool that may be called. Raises `ValueError`."""
    return parse(ChatTool, raw, where).function.to_tool()
