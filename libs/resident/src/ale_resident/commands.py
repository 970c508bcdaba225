"""Commands of a sandbox, the host's side: how one is asked for, and what its answer means."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from ale.errors import SandboxError
from ale.specs.sandbox import AGENT, TESTS, ExecResult
from ale_resident.channel import Channel
from ale_resident.inside.wire import CANCEL

GRACE_S = 15.0
"""Beyond a command's own time-out: a resident that has not answered by then is taken for dead."""
NO_COMMAND = ExecResult(2, b"", b"The command or its environment holds a NUL byte, which no shell can take.\n", 0.0)


def as_bytes(text: str) -> bytes:
    """A command or a path as the kernel takes it, also where a policy wrote half a character."""
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def check_user(user: str) -> str:
    """The two roles of the contract are the users there are."""
    if user not in (AGENT, TESTS):
        raise SandboxError(f"A sandbox has the users '{AGENT}' and '{TESTS}', not {user!r}.")
    return user


def request(
    command: str, timeout_s: float, limit: int, cwd: str | None, env: Mapping[str, str] | None, stdin: bytes, user: str
) -> list[bytes] | None:
    """The fields of an EXEC or a STREAM; `limit` is what it may put out, or how much before it must wait. None where no
    shell can be given such a command (`NO_COMMAND` is then its result)."""
    constants = [str(timeout_s), str(limit), check_user(user), cwd or "", command]
    pairs = [as_bytes(f"{name}={value}") for name, value in (env or {}).items()]
    if "\0" in command or any(b"\0" in pair for pair in pairs):
        return None
    return [*(as_bytes(text) for text in constants), stdin, *pairs]


async def run(channel: Channel, kind: bytes, fields: list[bytes], timeout_s: float) -> ExecResult:
    """Have a command run and await its end. Cancelling this ends the command."""
    number, future = channel.begin(kind, fields)
    try:
        async with asyncio.timeout(timeout_s + GRACE_S):
            answer = await future
    except TimeoutError:
        raise given_up(channel) from None
    except OSError as error:
        raise SandboxError(f"The sandbox {channel.sandbox_id} cannot run a command: {error.strerror}.") from error
    except asyncio.CancelledError:
        channel.send(number, CANCEL)
        raise
    finally:
        channel.calls.pop(number, None)
    return result(channel, answer)


def given_up(channel: Channel) -> SandboxError:
    """The resident has not ended a command long after it should have; the sandbox is ended."""
    channel.close(f"its resident process did not end a command {GRACE_S:.0f} s after its time-out")
    return channel.error()


def result(channel: Channel, answer: list[bytes]) -> ExecResult:
    """What a command did, from the resident's answer."""
    try:
        code, timed_out, truncated, seconds, stdout, stderr = answer
        return ExecResult(int(code), stdout, stderr, float(seconds), timed_out == b"1", truncated == b"1")
    except ValueError as error:
        raise SandboxError(f"The sandbox {channel.sandbox_id} gave an answer that makes no sense ({error}).") from error
