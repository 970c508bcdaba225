"""The client's side of OpenAI chat completions: writes a call as a request, and reads the replies of a completion."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ale.messages import ChatReply, FinishWord, Message, ModelCall
from ale.registry.validation import describe_error, one_line_error
from ale.session.reply_format import ReplyForm
from ale_endpoint.dialects.chat_completions import read_message

PASSED_ON = frozenset(
    {
        "temperature",
        "top_p",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "response_format",
        "reasoning_effort",
        "verbosity",
        "parallel_tool_calls",
        "user",
    }
)
"""Settings of agents that are passed on: most servers know them, and none of them multiplies the cost."""
FINISH: dict[str, FinishWord] = {
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


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
    reasoning = call.ignored.get("reasoning")  # as Responses has it
    if isinstance(reasoning, Mapping) and reasoning.get("effort"):
        body["reasoning_effort"] = reasoning["effort"]
    return body | {key: value for key, value in call.ignored.items() if key in PASSED_ON and value is not None}


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
        message = read_message({**raw, "role": "assistant", "tool_call_id": None}, "message")
        if not message.content and not message.tool_calls and isinstance(raw.get("refusal"), str):
            message = Message("assistant", raw["refusal"])
        message, illegal = _legal(message)
        finish = "tool_calls" if message.tool_calls else FINISH.get(choice.get("finish_reason") or "", "stop")
        if finish == "tool_calls" and not message.tool_calls:
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


def _legal(message: Message) -> tuple[Message, str | None]:
    """Give each call an id; where arguments are no JSON object, the message becomes text; the reason is a sentence."""
    calls = []
    for call in message.tool_calls:
        arguments = call.arguments.strip() or "{}"
        calls.append(replace(call, id=call.id or f"call_{uuid.uuid4().hex[:12]}", arguments=arguments))
    whole = Message("assistant", message.content, tuple(calls))
    try:
        for call in calls:
            call.parsed_arguments()
    except (ValueError, RecursionError) as error:
        return Message(
            "assistant", ReplyForm().write(whole)
        ), f"The tool call is not valid JSON: {one_line_error(error)}."
    return whole, None


def _logprobs(choice: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    content = (choice.get("logprobs") or {}).get("content") or []
    return tuple(
        (str(token["token"]), float(token["logprob"])) for token in content if token.get("logprob") is not None
    )


def whole(value: Any) -> int:
    """Return a count, or 0 if the value is not one."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
