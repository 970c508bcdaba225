"""This policy for real agents is a function: it reads the task in the prompt and solves it with the tools that it is
given."""

from __future__ import annotations

import json
import re
from typing import Any

TASK = re.compile(r"(?:Write|Put the word) (\w+) into (\w+\.txt)\.")
DONE = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def call(name: str, **arguments: Any) -> str:
    """A tool call in the policy's words."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def answer(asked: Any) -> str:
    """The first answer solves the task, the second says so."""
    found = TASK.findall(asked.prompt)
    command = "echo {} > {}".format(*found[-1])
    for tool, argument in (("exec_command", "cmd"), ("Bash", "command")):  # codex, Claude Code
        if f" {tool}(" in asked.prompt:
            return "It is done." if command in asked.prompt else call(tool, **{argument: command})
    if " todowrite(" in asked.prompt:  # opencode, which asks for a title meanwhile
        return "It is done." if command in asked.prompt else call("bash", command=command)
    first = asked.call == 0
    if " run_shell_command(" in asked.prompt:
        return call("run_shell_command", command=command, is_background=False) if first else "It is done."
    if " terminal(" in asked.prompt:
        return call("terminal", command=command) if first else call("finish", message="It is done.")
    if " bash(" not in asked.prompt:
        return "A title"
    return call("bash", command=command if first else DONE)
