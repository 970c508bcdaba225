"""The client's side of OpenAI chat completions: writes a call as a request, and reads the replies of a completion."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ale.messages import ChatReply, FinishWord, Message, ModelCall, TokenLogprob, ToolCall, whole_json
from ale.registry.validation import describe_error, one_line_error
from ale.session.reply_format import ReplyForm
from ale_endpoint.dialects.chat_completions import read_message

FINISH: dict[str, FinishWord] = {
    "": "stop",
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "sensitive": "content_filter",
}
"""Why a reply ended, by the words of servers. Any other word (`abort`, `error`) is no end of a reply."""


def request_body(call: ModelCall, model: str, n: int, longest: str) -> dict[str, Any]:
    """Write a call as a chat-completions request; `longest` is the server's name for an answer's limit of tokens."""
    body: dict[str, Any] = {"model": model, "messages": [_write_message(message) for message in call.messages]}
    if call.tools:
        body["tools"] = [tool.to_openai() for tool in call.tools]
        if call.tool_choice in ("none", "required"):
            body["tool_choice"] = call.tool_choice
        elif call.tool_choice != "auto":
            body["tool_choice"] = {"type": "function", "function": {"name": call.tool_choice}}
    if call.max_tokens is not None:
        body[longest] = call.max_tokens
    if call.stop:
        body["stop"] = list(call.stop)
    if n > 1:
        body["n"] = n
    if call.logprobs:
        body["logprobs"] = True
    return body | dict(call.passed_on)


def _write_message(message: Message) -> dict[str, Any]:
    data = message.to_openai()
    return {**data, "content": None} if message.tool_calls and not message.content else data


def read_replies(data: Mapping[str, Any], call: ModelCall) -> list[ChatReply]:
    """Read the choices of a chat completion; the first one carries the usage of all. Raises `ValueError`."""
    try:
        found = _replies(data, call)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"it has another shape ({describe_error(error)})") from None
    if not found:
        raise ValueError("it holds no choice")
    return found


def _replies(data: Mapping[str, Any], call: ModelCall) -> list[ChatReply]:
    usage = data.get("usage")
    counted = usage if isinstance(usage, Mapping) else {}
    made = []
    for i, choice in enumerate(data["choices"]):
        raw = choice["message"]
        finish = _finish(choice)
        message = read_message({**raw, "role": "assistant", "tool_call_id": None}, "message")
        message, illegal = _legal(message)
        if message.tool_calls:
            finish = "tool_calls"
        elif finish == "tool_calls":
            finish = "stop"
        stop = choice.get("stop_reason")  # of vLLM and others
        made.append(
            ChatReply(
                message,
                finish,
                chunk=i,
                prompt_tokens=whole(counted.get("prompt_tokens")),
                completion_tokens=0 if i else whole(counted.get("completion_tokens")),
                illegal=illegal,
                stop=stop if stop in call.stop else None,
                tokens=_logprobs(choice),
            )
        )
    return made


def _finish(choice: Mapping[str, Any]) -> FinishWord:
    """Return why a choice ended. Raises `ValueError` if it did not end, but was broken off."""
    word = choice.get("finish_reason") or ""
    finish = FINISH.get(word.lower()) if isinstance(word, str) else None
    if finish is None or choice.get("error"):
        raise ValueError(f"its generation was broken off (finish_reason {word!r:.60})")
    return finish


def _legal(message: Message) -> tuple[Message, str | None]:
    """Give each call an id; where arguments are no JSON object, the message becomes text; the reason is a sentence."""
    calls: list[ToolCall] = []
    for call in message.tool_calls:
        arguments = call.arguments.strip() or "{}"
        calls.append(replace(call, id=call.id or f"call_{uuid.uuid4().hex[:12]}", arguments=arguments))
    try:
        for call in calls:
            call.parsed_arguments()
        calls = [replace(call, arguments=whole_json(call.arguments)) for call in calls]
    except (ValueError, RecursionError) as error:
        text = ReplyForm().write(Message("assistant", message.content, tuple(calls)))
        fault = f"The tool call is not valid JSON: {one_line_error(error)}."
        return replace(message, content=text, tool_calls=()), fault
    return replace(message, tool_calls=tuple(calls)), None


def _logprobs(choice: Mapping[str, Any]) -> tuple[TokenLogprob, ...]:
    content = (choice.get("logprobs") or {}).get("content") or []
    return tuple(_logprob(token) for token in content if token.get("logprob") is not None)


def _logprob(token: Mapping[str, Any]) -> TokenLogprob:
    data = token.get("bytes")
    likely = tuple(_logprob(each) for each in token.get("top_logprobs") or () if each.get("logprob") is not None)
    return TokenLogprob(str(token["token"]), float(token["logprob"]), None if data is None else bytes(data), likely)


def whole(value: Any) -> int:
    """Return a count, or 0 if the value is not one."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
