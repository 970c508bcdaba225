"""Demonstrators speak with the tools that an agent has."""

from __future__ import annotations

from typing import Any

import pytest

from ale.messages import ToolSpec
from ale_bash.demonstrator import Demonstrator, fit, run_solution
from ale_bash.family import Call


def tool(name: str, *required: str, **properties: Any) -> ToolSpec:
    return ToolSpec(name, name, {"type": "object", "properties": properties, "required": list(required)})


TEXT = {"type": "string"}
BASH = tool("bash", "command", command=TEXT)
QWEN = tool(
    "run_shell_command", "command", "is_background", "mode", command=TEXT, is_background={"type": "boolean"},
    mode={"type": "string", "enum": ["plain", "fancy"]},
)  # fmt: skip
EDITOR = tool("file_editor", "command", "path", command=TEXT, path=TEXT)


@pytest.mark.parametrize(
    ("call", "command"),
    [
        (Call("shell", {"command": "ls | wc -l"}), "ls | wc -l"),
        (Call("read_file", {"path": "a b.txt"}), "cat 'a b.txt'"),
        (Call("write_file", {"path": "out.txt", "content": "it's"}), "echo 'it'\"'\"'s' > out.txt"),
    ],
)
def test_what_a_call_would_do_becomes_a_command(call: Call, command: str) -> None:
    assert fit(call, [EDITOR, BASH]) == Call("bash", {"command": command})
    wanted = {"command": command, "is_background": False, "mode": "plain"}
    assert fit(call, [QWEN]) == Call("run_shell_command", wanted)


def test_a_tool_of_the_calls_name_is_taken_as_it_is() -> None:
    call = Call("shell", {"command": "ls"})
    assert fit(call, [tool("shell", "command", command=TEXT), BASH]) == call
    assert fit(call, []) == call
    assert fit(call, [tool("fly")]) == call


async def test_the_end_is_a_sentence_where_no_tool_ends_the_episode() -> None:
    show = Demonstrator(run_solution("true"))
    first = await show((), (BASH,))
    assert first is not None
    assert first.tool_calls[0].name == "bash"
    last = await show((first,), (BASH,))
    assert last is not None
    assert (last.content, last.tool_calls) == ("It is done.", ())
    assert await show((first, last), (BASH,)) is None
