"""Qwen3-Coder writes calls as tags instead of JSON, so that code need not be escaped.

    <tool_call>
    <function=shell>
    <parameter=command>
    ls
    </parameter>
    </function>
    </tool_call>

A value is text. It is read as JSON if the tool's schema says that it is something other than text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ale.messages import ToolCall, ToolSpec, read_json
from ale.session.tool_formats.hermes import CLOSE, OPEN, as_json, longest_beginning
from ale.specs.driver import Driver
from ale.specs.tool_format import FoundCall, ReadReply, ToolFormat

_BEGINS = re.compile(r"<tool_call>\s*(?:<function=([^>\n]*)>)?")
_ENDS = re.compile(r"</function>\s*</tool_call>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]*)>\n?")
_VALUE_ENDS = re.compile(r"</parameter>(?=\s*(?:<parameter=|\Z))")


class QwenXML(Driver, ToolFormat):
    """Tool calls as tags for the function and each parameter, as Qwen3-Coder writes them."""

    api_version = ">=1.0,<1.2"

    def read(self, text: str, tools: Sequence[ToolSpec]) -> ReadReply:
        if OPEN not in text:
            return ReadReply(text)
        schemas = {tool.name: tool.parameters.get("properties") for tool in tools}
        calls: list[FoundCall] = []
        rest, at = "", 0
        while begins := _BEGINS.search(text, at):
            ends = _ENDS.search(text, begins.end()) if begins.group(1) else None
            if ends is None:
                raise ValueError(
                    f"The tool call must be <function=NAME>, its parameters and </function>, closed with {CLOSE}."
                )
            name = begins.group(1).strip()
            known = schemas.get(name)
            given = _arguments(name, text[begins.end() : ends.start()], known if isinstance(known, Mapping) else {})
            calls.append(FoundCall(name, given))
            rest += text[at : begins.start()]
            at = ends.end()
        return ReadReply((rest + text[at:]).strip(), tuple(calls))

    def certain_text(self, text: str) -> int:
        begins = text.find(OPEN)
        return begins if begins >= 0 else len(text) - longest_beginning(text, OPEN)

    def write(self, content: str, calls: Sequence[ToolCall]) -> str:
        return content + "".join(map(_write_call, calls))


def _write_call(call: ToolCall) -> str:
    values = (
        f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}\n"
        "</parameter>\n"
        for key, value in call.parsed_arguments().items()
    )
    return f"{OPEN}\n<function={call.name}>\n{''.join(values)}</function>\n{CLOSE}"


def _arguments(name: str, text: str, properties: Mapping[str, Any]) -> str:
    """Return the JSON text of a call's arguments. Raises `ValueError`."""
    given: dict[str, Any] = {}
    at = 0
    while begins := _PARAMETER.match(text, at):
        ends = _VALUE_ENDS.search(text, begins.end())
        if ends is None:
            break
        key, value = begins.group(1).strip(), text[begins.end() : ends.start()]
        given[key] = _value(value.removesuffix("\n"), properties.get(key))
        at = ends.end()
    if text[at:].strip():
        raise ValueError(f"The parameters of '{name}' must each be <parameter=NAME>, the value and </parameter>.")
    return as_json(given)


def _value(text: str, schema: Any) -> Any:
    """Read a text as the type that the schema names; return the text if none is named or it cannot be read so."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind in (None, "string") or (isinstance(kind, list) and "string" in kind):
        return text
    try:
        return read_json(text)
    except (ValueError, RecursionError):
        return text
