"""Runs commands in a sandbox, the host's side: makes their requests and reads their answers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from ale.errors import ConfigError, SandboxError
from ale.specs.sandbox import AGENT, TESTS, ExecResult
from ale_sandbox.host.channel import Channel
from ale_sandbox.resident.frames import CANCEL

GRACE_S = 15.0
"""A resident that has not answered this long after a command's time-out counts as dead."""
NO_COMMAND = ExecResult(
    2,
    b"",
    b"The command, its folder or its environment holds a NUL byte, or a variable's name is empty or holds '='; "
    b"no shell can take that.\n",
    0.0,
)


def as_bytes(text: str) -> bytes:
    """Encode a command or a path for the kernel, even if the policy wrote half a character."""
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def check_user(user: str) -> str:
    """Check that a user is one of the contract's two roles."""
    if user not in (AGENT, TESTS):
        raise SandboxError(f"A sandbox has the users '{AGENT}' and '{TESTS}', not {user!r}.")
    return user


def variable_fault(env: Mapping[str, str]) -> str | None:
    """Return why no program can be given these variables, as the end of a sentence; None if one can."""
    for name, value in env.items():
        if not name or "=" in name:
            return f"has the name {name!r}, and a name is not empty and holds no '='"
        if "\0" in name + value:
            return f"{name!r} holds a NUL byte"
    return None


def check_environment(env: Mapping[str, str]) -> None:
    """Check that programs can be given a spec's environment. Raises `ConfigError`."""
    if (fault := variable_fault(env)) is not None:
        raise ConfigError(f"The sandbox cannot be given its environment (SandboxSpec.env): a variable {fault}.")


def request(
    command: str,
    *,
    timeout_s: float,
    limit: int,
    cwd: str | None,
    env: Mapping[str, str] | None,
    stdin: bytes,
    user: str,
) -> list[bytes] | None:
    """Make the fields of an EXEC (`limit`: its most bytes of output) or a STREAM (`limit`: bytes before it must wait).
    None if no shell can take such a command (its result is then `NO_COMMAND`)."""
    constants = [str(timeout_s), str(limit), check_user(user), cwd or "", command]
    if "\0" in command or "\0" in (cwd or "") or variable_fault(env or {}):
        return None
    pairs = [as_bytes(f"{name}={value}") for name, value in (env or {}).items()]
    return [*(as_bytes(text) for text in constants), stdin, *pairs]


async def run(channel: Channel, kind: bytes, fields: list[bytes], timeout_s: float) -> ExecResult:
    """Run a command and wait for its end. Cancelling this ends the command."""
    number, future = channel.begin(kind, fields)
    try:
        async with asyncio.timeout(timeout_s + GRACE_S):
            answer = await future
    except TimeoutError:
        raise close_unresponsive(channel) from None
    except OSError as error:
        raise SandboxError(f"The sandbox {channel.sandbox_id} cannot run a command: {error.strerror}.") from error
    except asyncio.CancelledError:
        channel.send(number, CANCEL)
        raise
    finally:
        channel.calls.pop(number, None)
    return result(channel, answer)


def close_unresponsive(channel: Channel) -> SandboxError:
    """End a sandbox whose resident did not end a command in time; return the error."""
    channel.close(f"its resident process did not end a command {GRACE_S:.0f} s after its time-out")
    return channel.error()


def result(channel: Channel, answer: list[bytes]) -> ExecResult:
    """Read the result of a command from the resident's answer."""
    try:
        code, timed_out, truncated, seconds, stdout, stderr = answer
        return ExecResult(
            exit_code=int(code),
            stdout=stdout,
            stderr=stderr,
            duration_s=float(seconds),
            timed_out=timed_out == b"1",
            truncated=truncated == b"1",
        )
    except ValueError as error:
        raise SandboxError(f"The sandbox {channel.sandbox_id} gave an invalid answer ({error}).") from error
