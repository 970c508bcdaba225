"""The four tools: their descriptions for the model, and how they act on the sandbox."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from ale.messages import ChunkErrorKind, ToolCall, ToolSpec
from ale.specs.sandbox import ExecResult, Sandbox

FINISH = "finish"


def _tool(name: str, description: str, **parameters: str) -> ToolSpec:
    properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return ToolSpec(name, description, schema)


TOOLS = (
    _tool("shell", "Run a shell command in the work folder.", command="The command."),
    _tool("read_file", "Read a text file.", path="Path of the file."),
    _tool(
        "write_file", "Write a text file; an old one is replaced.", path="Path of the file.", content="The whole text."
    ),
    _tool(FINISH, "Say that the task is done."),
)
_SPECS = {tool.name: tool for tool in TOOLS}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one call: the text that the model sees, and whether the call counts as an error."""

    text: str
    arguments: dict[str, Any]
    exit_code: int | None = None
    error: ChunkErrorKind | None = None
    seconds: float = 0.0


class ToolBox:
    """Runs tool calls in one sandbox."""

    def __init__(self, sandbox: Sandbox, timeout_s: float, max_chars: int) -> None:
        self._sandbox = sandbox
        self._timeout_s = timeout_s
        self._max_chars = max_chars

    async def run(self, call: ToolCall) -> Outcome:
        """Run one call. A fault of the sandbox raises; everything else is an answer to the model."""
        started = time.monotonic()
        arguments, complaint = _check(call)
        if complaint is not None:
            return Outcome(complaint, arguments, error="illegal_call")
        if call.name == "shell":
            result = await self._sandbox.exec(arguments["command"], timeout_s=self._timeout_s)
            failed = result.timed_out or (result.exit_code != 0 and bool(result.stderr.strip()))
            return Outcome(
                self._shell_text(result),
                arguments,
                result.exit_code,
                "execution_failed" if failed else None,
                time.monotonic() - started,
            )
        text, error = await self._file_tool(call.name, arguments)
        return Outcome(text, arguments, 0 if error is None else 1, error, time.monotonic() - started)

    async def _file_tool(self, name: str, arguments: dict[str, Any]) -> tuple[str, ChunkErrorKind | None]:
        if name == "read_file":
            try:
                data = await self._sandbox.download(arguments["path"], max_bytes=1 << 20)
            except OSError as error:
                return f"{arguments['path']}: {error.strerror or 'cannot be read'}", "execution_failed"
            return self._cut(data.decode("utf-8", "replace").strip()) or "(empty file)", None
        if name == "write_file":
            try:
                await self._sandbox.upload({arguments["path"]: arguments["content"].encode()})
            except OSError as error:
                return f"{arguments['path']}: {error.strerror or 'cannot be written'}", "execution_failed"
            return "written", None
        return "done", None

    def _shell_text(self, result: ExecResult) -> str:
        text = self._cut(result.output.strip())
        if result.timed_out:
            note = f"[stopped after {self._timeout_s:g} s]"
        elif result.exit_code != 0:
            note = f"[exit code {result.exit_code}]"
        else:
            return text or "(no output)"
        return f"{text}\n{note}" if text else note

    def _cut(self, text: str) -> str:
        if len(text) <= self._max_chars:
            return text
        half = self._max_chars // 2
        return f"{text[:half]}\n[{len(text) - 2 * half} characters cut]\n{text[-half:]}"


def _check(call: ToolCall) -> tuple[dict[str, Any], str | None]:
    """The arguments, and a sentence where the call is not legal."""
    spec = _SPECS.get(call.name)
    if spec is None:
        return {}, f"There is no tool '{call.name}'; the tools are {', '.join(_SPECS)}."
    try:
        arguments = call.parsed_arguments()
    except ValueError as error:
        return {}, f"The arguments of {call.name} cannot be read: {error}."
    wanted: dict[str, Any] = spec.parameters["properties"]
    for key in wanted:
        if not isinstance(arguments.get(key), str):
            return arguments, f"{call.name} needs '{key}' as a text."
        if key == "path" and (not arguments[key] or "\0" in arguments[key]):
            return arguments, f"{call.name} needs 'path' as the name of a file."
    for key in arguments:
        if key not in wanted:
            return arguments, f"{call.name} takes no '{key}'; it takes {', '.join(wanted) or 'nothing'}."
    return arguments, None
