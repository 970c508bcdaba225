"""OpenAI chat completions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from ale.endpoint.dialects.dialect import (
    MOST_CHOICES,
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
    texts,
)
from ale.messages import ChatReply, Message, Role, ToolCall, ToolSpec

ROLES: dict[str, Role] = {
    "system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool", "function": "tool",
}  # fmt: skip
READ = {
    "messages", "tools", "tool_choice", "max_tokens", "max_completion_tokens", "stop", "n", "stream_options", "logprobs",
    "functions",
}  # fmt: skip


class ChatCompletions(Dialect):
    """`POST /v1/chat/completions`."""

    path: ClassVar[str] = "/v1/chat/completions"

    def read(self, body: Mapping[str, Any]) -> ModelCall:
        messages = listed(body, "messages")
        if not messages:
            raise ValueError("'messages' must be a list with at least one message")
        tools = [read_tool(raw, f"tools[{i}]") for i, raw in enumerate(listed(body, "tools"))]
        options = optional(body, "stream_options", dict, "an object") or {}
        n = positive(body, "n") or 1
        if n > MOST_CHOICES:
            raise ValueError(f"'n' must be at most {MOST_CHOICES}, not {n}")
        return ModelCall(
            tuple(read_message(raw, f"messages[{i}]") for i, raw in enumerate(messages)), tuple(tools),
            read_choice(body.get("tool_choice"), {tool.name for tool in tools}),
            positive(body, "max_completion_tokens", "max_tokens"), texts(body.get("stop"), "stop"), n,
            stream_usage=bool(options.get("include_usage")),
            logprobs=bool(optional(body, "logprobs", bool, "true or false")), **common(body, READ),
        )  # fmt: skip

    def answer(self, call: ModelCall, replies: Sequence[ChatReply], call_id: str) -> dict[str, Any]:
        choices = []
        for i, reply in enumerate(replies):
            message = reply.message.to_openai()
            if reply.message.tool_calls and not reply.message.content:
                message["content"] = None
            logprobs = {"content": token_logprobs(reply), "refusal": None} if call.logprobs else None
            choices.append({"index": i, "message": message, "finish_reason": reply.finish_reason, "logprobs": logprobs})
        return {**head(call, call_id, "chat.completion"), "choices": choices, "usage": usage(replies)}

    def events(self, call: ModelCall, replies: Sequence[ChatReply], call_id: str) -> Iterator[Event]:
        base = head(call, call_id, "chat.completion.chunk")
        tail = {"usage": None} if call.stream_usage else {}

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
            logprobs = {"content": token_logprobs(reply), "refusal": None} if call.logprobs else None
            yield event(i, {}, reply.finish_reason, logprobs)
        if call.stream_usage:
            yield Event({**base, "choices": [], "usage": usage(replies)})
        yield Event("[DONE]")

    def error(self, status: int, code: str, message: str) -> dict[str, Any]:
        return openai_error(status, code, message)

    def error_events(self, status: int, code: str, message: str) -> Iterator[Event]:
        yield Event(self.error(status, code, message))


def head(call: ModelCall, call_id: str, kind: str) -> dict[str, Any]:
    """What an answer and each event of a stream begin with."""
    return {"id": f"chatcmpl-{call_id}", "object": kind, "created": int(time.time()), "model": call.model}


def usage(replies: Sequence[ChatReply]) -> dict[str, Any]:
    """Tokens: the prompt's once, the answers' together."""
    prompt, answers = replies[0].prompt_tokens, sum(reply.completion_tokens for reply in replies)
    return {"prompt_tokens": prompt, "completion_tokens": answers, "total_tokens": prompt + answers}


def token_logprobs(reply: ChatReply) -> list[dict[str, Any]]:
    """The log-probability of each sampled token, at temperature 1; no alternatives are known."""
    return [
        {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
        for text, logprob in reply.tokens
    ]


def read_message(raw: Any, where: str) -> Message:
    """One message. Raises `ValueError`."""
    if not isinstance(raw, Mapping):
        raise ValueError(f"{where} must be an object, not {kind_of(raw)}")
    role = raw.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise ValueError(f"{where}.role is {role!r}; known roles are {', '.join(ROLES)}")
    calls = [read_call(each, f"{where}.tool_calls[{i}]") for i, each in enumerate(listed(raw, "tool_calls"))]
    answered = optional(raw, "tool_call_id", str, "a text")
    thought = next((raw[key] for key in ("reasoning_content", "reasoning") if isinstance(raw.get(key), str)), "")
    said = content_text(raw.get("content"), f"{where}.content")
    return Message(ROLES[role], said, tuple(calls), answered, thought if role == "assistant" else "")


def read_call(raw: Any, where: str) -> ToolCall:
    """A tool call of an assistant's message."""
    function = raw.get("function") if isinstance(raw, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError(f"{where} needs 'function' with a 'name' and 'arguments'")
    return ToolCall(text_of(raw, "id", where), function["name"], arguments_text(function.get("arguments")))


def read_tool(raw: Any, where: str) -> ToolSpec:
    """A tool that may be called."""
    function = raw.get("function") if isinstance(raw, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError(f"{where} must be a function tool with a name")
    parameters = schema(function.get("parameters"), f"{where}.function.parameters")
    return ToolSpec(function["name"], text_of(function, "description", f"{where}.function"), parameters)


def read_choice(raw: Any, names: set[str]) -> str:
    """What the agent wants of the tools. Raises `ValueError` for a tool that there is not."""
    if raw is None:
        return "auto"
    if isinstance(raw, str):
        if raw not in ("auto", "none", "required"):
            raise ValueError(f"'tool_choice' is {raw!r}; it may be auto, none, required, or name a tool")
        return raw
    function = raw.get("function", raw) if isinstance(raw, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise ValueError("'tool_choice' must be a text, or an object that names a tool")
    return named(name, names)
