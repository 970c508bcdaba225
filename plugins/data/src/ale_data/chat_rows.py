"""Reads messages and tools as data sets have them: in OpenAI's form, with what TRL and Arrow make of it.

Arguments of calls may be an object, ids of calls may be missing, keys may be null, and a list may be JSON text (in a
CSV column, or where Arrow could not hold it). A tool may be the name of a Python function. Every fault is a
`ValueError` with a sentence without a full stop.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ale.errors import ConfigError
from ale.messages import Message, Role, ToolCall, ToolSpec
from ale.registry.user_functions import describe_function, load_function
from ale.registry.validation import one_line_error

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_NO_PARAMETERS = {"type": "object", "properties": {}}


def read_messages(value: Any) -> tuple[Message, ...]:
    """Return a list of messages. Raises `ValueError` that names the wrong one by its number."""
    items = _as_list(value, "messages, each with 'role' and 'content'")
    out: list[Message] = []
    unanswered: list[str] = []
    for number, item in enumerate(items, 1):
        try:
            message = _read_message(item, number, unanswered)
        except ValueError as error:
            raise ValueError(f"message {number}: {error}") from None
        out.append(message)
    return tuple(out)


def read_tools(value: Any) -> tuple[ToolSpec, ...]:
    """Return the tools that the model could call; none for null. An item is a tool in OpenAI's form, or the name of a
    function (`./tools.py:search`, `module:search`) that describes itself. Raises `ValueError`."""
    if value is None or value == "":
        return ()
    out = []
    for number, item in enumerate(_as_list(value, "tools in OpenAI's form, or names of functions"), 1):
        if isinstance(item, str):
            item = _describe(item, number)
        function = _object(item).get("function", item)
        name = _object(function).get("name")
        parameters = _object(function).get("parameters") or _NO_PARAMETERS
        if not isinstance(name, str) or not name or not isinstance(parameters, Mapping):
            raise ValueError(f"tool {number} must be an object with 'function': 'name', 'description', 'parameters'")
        shape = dict(parameters) if "properties" in parameters else {**parameters, "properties": {}}
        out.append(ToolSpec(name, str(function.get("description") or ""), shape))
    return tuple(out)


def _describe(name: str, number: int) -> Mapping[str, Any]:
    """Return a function that is named as tool `number` in OpenAI's form. Raises `ValueError`."""
    try:
        return describe_function(load_function(name))
    except ConfigError as error:
        raise ValueError(f"tool {number}: {one_line_error(error)}") from None


def _read_message(item: Any, number: int, unanswered: list[str]) -> Message:
    """Read one message; `unanswered` are the ids of the calls so far that no tool has answered."""
    fields = _object(item)
    if not fields:
        raise ValueError(f"it must be an object with 'role' and 'content', not {_short(item)}")
    role = ROLES.get(str(fields.get("role")))
    if role is None:
        raise ValueError(f"its role is {_short(fields.get('role'))}, and must be one of {', '.join(ROLES)}")
    content = _read_content(fields.get("content"))
    if role == "assistant":
        calls = tuple(
            _read_call(call, f"call_{number}_{i}")
            for i, call in enumerate(_as_list(fields.get("tool_calls") or [], "tool calls"))
        )
        unanswered[:] = [call.id for call in calls]
        if not content and not calls:
            raise ValueError("the assistant neither says nor calls anything")
        reasoning = fields.get("reasoning_content") or fields.get("reasoning") or ""
        return Message(role, content, calls, reasoning=str(reasoning))
    if fields.get("content") is None:
        raise ValueError("it has no 'content'")
    if role == "tool":
        answered = fields.get("tool_call_id") or (unanswered[0] if unanswered else None)
        if answered in unanswered:
            unanswered.remove(answered)
        return Message(role, content, tool_call_id=None if answered is None else str(answered))
    return Message(role, content)


def _read_content(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise ValueError(f"its content must be text, not {_short(value)}")
    texts = []
    for part in value:
        text = part if isinstance(part, str) else _object(part).get("text")
        if not isinstance(text, str):
            kind = _object(part).get("type")
            raise ValueError(f"its content has a part of the type {_short(kind)}, and only text can be read")
        texts.append(text)
    return "".join(texts)


def _read_call(item: Any, default_id: str) -> ToolCall:
    function = _object(_object(item).get("function", item))
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name:
        raise ValueError("a tool call must be an object with 'function': 'name', 'arguments'")
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    call = ToolCall(str(_object(item).get("id") or default_id), name, arguments)
    try:
        call.parsed_arguments()
    except (ValueError, RecursionError):
        raise ValueError(f"the arguments of '{name}' must be a JSON object, not {_short(arguments)}") from None
    return call


def _as_list(value: Any, what: str) -> list[Any]:
    """Return a list, which may be JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError(f"it must be a list of {what}, not {_short(value)}") from None
    if not isinstance(value, list):
        raise ValueError(f"it must be a list of {what}, not {_short(value)}")
    return value


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _short(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
