"""Demonstrators speak with the tools that an agent has."""

from __future__ import annotations

from typing import Any

import pytest

from ale.messages import ToolSpec
from ale_bash.demonstrator import Demonstrator, fit_to_tools, run_solution
from ale_bash.family import DemonstratorCall


def tool(name: str, *required: str, **properties: Any) -> ToolSpec:
    return ToolSpec(name, name, {"type": "object", "properties": properties, "required": list(required)})


TEXT = {"type": "string"}
BASH = tool("bash", "command", command=TEXT)
QWEN = tool(
    "run_shell_command",
    "command",
    "is_background",
    "mode",
    command=TEXT,
    is_background={"type": "boolean"},
    mode={"type": "string", "enum": ["plain", "fancy"]},
)
EDITOR = tool("file_editor", "command", "path", command=TEXT, path=TEXT)


@pytest.mark.parametrize(
    ("call", "command"),
    [
        (DemonstratorCall("shell", {"command": "ls | wc -l"}), "ls | wc -l"),
        (DemonstratorCall("read_file", {"path": "a b.txt"}), "cat 'a b.txt'"),
        (DemonstratorCall("write_file", {"path": "out.txt", "content": "it's"}), "echo 'it'\"'\"'s' > out.txt"),
    ],
)
def test_what_a_call_would_do_becomes_a_command(call: DemonstratorCall, command: str) -> None:
    assert fit_to_tools(call, [EDITOR, BASH]) == DemonstratorCall("bash", {"command": command})
    wanted = {"command": command, "is_background": False, "mode": "plain"}
    assert fit_to_tools(call, [QWEN]) == DemonstratorCall("run_shell_command", wanted)


def test_a_tool_of_the_calls_name_is_taken_as_it_is() -> None:
    call = DemonstratorCall("shell", {"command": "ls"})
    assert fit_to_tools(call, [tool("shell", "command", command=TEXT), BASH]) == call
    assert fit_to_tools(call, []) == call
    assert fit_to_tools(call, [tool("fly")]) == call


async def test_the_end_is_a_sentence_where_no_tool_ends_the_episode() -> None:
    show = Demonstrator(run_solution("true"))
    first = await show((), (BASH,))
    assert first is not None
    assert first.message.tool_calls[0].name == "bash"
    last = await show((first.message,), (BASH,))
    assert last is not None
    assert (last.message.content, last.message.tool_calls) == ("It is done.", ())
    assert await show((first.message, last.message), (BASH,)) is None
