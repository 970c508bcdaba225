"""Commands in ALE's own routes to a sandbox (`Sandbox.exec` and shells), and their results; bytes are base64."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field

from ale.specs.sandbox import ExecResult


class ExecCommand(BaseModel):
    """`POST .../sandboxes/{id}/exec`: `Sandbox.exec` of ALE. `stdin` is base64."""

    command: str
    timeout_s: float = Field(60.0, gt=0)
    cwd: str | None = None
    env: dict[str, str] | None = Field(None, repr=False)
    stdin: str = ""
    user: str = "agent"
    max_output_bytes: int = Field(1 << 20, ge=0)


class ExecOutcome(BaseModel):
    """The answer to an `ExecCommand`: an `ExecResult`; `stdout` and `stderr` are base64."""

    exit_code: int
    stdout: str = ""
    stderr: str = ""
    duration_s: float = 0.0
    timed_out: bool = False
    truncated: bool = False


class OpenShell(BaseModel):
    """`POST .../sandboxes/{id}/shells`: `Shells.open_shell` of ALE; the answer names the shell.

    `POST .../shells/{shell}/run` with an `ExecCommand` runs a command in it, and `DELETE .../shells/{shell}` closes it.
    """

    cwd: str | None = None
    env: dict[str, str] | None = Field(None, repr=False)
    user: str = "agent"


def command_body(
    command: str, timeout_s: float, cwd: str | None, env: Mapping[str, str] | None, stdin: bytes, user: str
) -> dict[str, Any]:
    """Return the body of an `ExecCommand` for the arguments of `Sandbox.exec`."""
    return {
        "command": command,
        "timeout_s": timeout_s,
        "cwd": cwd,
        "env": dict(env or {}),
        "stdin": b64encode(stdin).decode(),
        "user": user,
    }


def result_of(done: Mapping[str, Any]) -> ExecResult:
    """Return the result that the JSON of an `ExecOutcome` holds."""
    return ExecResult(
        done["exit_code"],
        b64decode(done["stdout"]),
        b64decode(done["stderr"]),
        done["duration_s"],
        done["timed_out"],
        done["truncated"],
    )
