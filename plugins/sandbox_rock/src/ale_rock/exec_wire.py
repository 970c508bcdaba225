"""A command of `Sandbox.exec` and its result, as ALE's routes carry them (`wire.ExecCommand`): bytes are base64."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from ale.specs.sandbox import ExecResult


def command_body(
    command: str, timeout_s: float, cwd: str | None, env: Mapping[str, str] | None, stdin: bytes, user: str
) -> dict[str, Any]:
    """Return what is told about a command."""
    return {
        "command": command,
        "timeout_s": timeout_s,
        "cwd": cwd,
        "env": dict(env or {}),
        "stdin": b64encode(stdin).decode(),
        "user": user,
    }


def result_of(done: Mapping[str, Any]) -> ExecResult:
    """Return the result in an answer."""
    return ExecResult(
        done["exit_code"],
        b64decode(done["stdout"]),
        b64decode(done["stderr"]),
        done["duration_s"],
        done["timed_out"],
        done["truncated"],
    )
