"""`ale sandbox exec | shell | logs`: into a sandbox that another process owns.

Each attaches through the provider (`SandboxProvider.attach`), and leaves when it ends: the sandbox goes on.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from ale.config_base import PluginChoice
from ale.errors import ConfigError, PluginError, SandboxError
from ale.installed import list_plugins
from ale.plugins import build_driver
from ale.specs.driver import DriverContext
from ale.specs.sandbox import ExecResult, Output, Sandbox, SandboxProvider, Shell

OUTPUT_BYTES = 8 << 20
"""Of one command of a shell; the rest is not shown."""
EXIT = re.compile(r"\s*exit(?:\s+(\d{1,3}))?\s*")


def run(
    sandbox_id: str, name: str | None, command: list[str], timeout_s: float, cwd: str | None, env: list[str], user: str
) -> int:
    """Run a command, its output passed on as it comes; its exit code. One word is a shell's command as it stands."""
    line = command[0] if len(command) == 1 else shlex.join(command)
    variables = _variables(env)
    stdin = b"" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer.read()

    async def work() -> int:
        provider, box = await _attach(sandbox_id, name)
        how: dict[str, Any] = {"timeout_s": timeout_s, "cwd": cwd, "env": variables, "stdin": stdin, "user": user}
        async with box:
            if "streaming" not in provider.capabilities:
                return _show(await box.exec(line, **how, max_output_bytes=OUTPUT_BYTES))
            async for part in box.exec_stream(line, **how):
                if isinstance(part, Output):
                    _pass_on(part)
                else:
                    return _show(part)
        raise SandboxError(f"The sandbox {sandbox_id} did not say how the command ended.")

    _heed_ctrl_c()
    return asyncio.run(work())


def shell(sandbox_id: str, name: str | None, cwd: str | None, user: str, timeout_s: float) -> int:
    """Run line after line in one shell; the exit code of the last one. Ctrl-C ends the line that runs, and no more."""
    code = 0
    _heed_ctrl_c()
    with asyncio.Runner() as runner:
        _, box = runner.run(_attach(sandbox_id, name))
        try:
            there = runner.run(box.open_shell(cwd=cwd, user=user))
            for line in _lines(f"{sandbox_id}$ "):
                left = EXIT.fullmatch(line)
                if left is not None:
                    return int(left[1]) % 256 if left[1] else code
                try:
                    code = _show(runner.run(_in_shell(there, line, timeout_s)))
                except KeyboardInterrupt:
                    if not sys.stdin.isatty():
                        raise
                    code = 130
                    print(file=sys.stderr)
        finally:
            runner.run(box.stop())
    return code


def logs(sandbox_id: str, name: str | None) -> None:
    """Print what happened in it lately."""

    async def work() -> str:
        _, box = await _attach(sandbox_id, name)
        async with box:
            return await box.logs()

    print(asyncio.run(work()), end="")


def _heed_ctrl_c() -> None:
    """What a script starts in the background ignores SIGINT, unless it says otherwise."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


async def _attach(sandbox_id: str, name: str | None) -> tuple[SandboxProvider, Sandbox]:
    """The provider that has it, and the sandbox. Raises what each provider says where none has."""
    names = [name] if name else [info.name for info in list_plugins("sandbox") if info.status == "ok"]
    faults: dict[str, None] = {}
    for use in dict.fromkeys(names):
        try:
            provider = build_driver("sandbox", PluginChoice(use=use), DriverContext(run_id="cli"))
            assert isinstance(provider, SandboxProvider)
            return provider, await provider.attach(sandbox_id)
        except (ConfigError, PluginError, SandboxError) as error:
            faults[str(error)] = None
    if not faults:
        raise ConfigError("No sandbox provider is installed; `ale plugins list` lists what is.")
    raise SandboxError("\n".join(faults))


async def _in_shell(there: Shell, line: str, timeout_s: float) -> ExecResult:
    return await there.run(line, timeout_s=timeout_s, max_output_bytes=OUTPUT_BYTES)


def _lines(prompt: str) -> Iterator[str]:
    """What is typed, or comes through a pipe, a line at a time, until it ends."""
    if not sys.stdin.isatty():
        for line in sys.stdin:
            yield line.rstrip("\n")
        return
    with suppress(ImportError):
        import readline  # noqa: F401  # so that lines can be edited and come back
    while True:
        try:
            yield input(prompt)
        except KeyboardInterrupt:
            print(file=sys.stderr)
        except EOFError:
            print(file=sys.stderr)
            return


def _show(done: ExecResult) -> int:
    """Pass on what was not yet, say what is not seen from it; the exit code."""
    _pass_on(Output("stdout", done.stdout))
    _pass_on(Output("stderr", done.stderr))
    if done.timed_out:
        print(f"ale: the command was ended after {done.duration_s:.0f} s (--timeout)", file=sys.stderr)
    if done.truncated:
        print(f"ale: output beyond {OUTPUT_BYTES >> 20} MiB is left out", file=sys.stderr)
    return done.exit_code


def _pass_on(output: Output) -> None:
    """Output as it is, bytes; who reads slowly makes the command wait."""
    stream = sys.stdout if output.stream == "stdout" else sys.stderr
    stream.flush()
    stream.buffer.write(output.data)
    stream.buffer.flush()


def _variables(pairs: list[str]) -> dict[str, str]:
    found = dict(pair.partition("=")[::2] for pair in pairs)
    if "" in found or any("=" not in pair for pair in pairs):
        raise ConfigError("--env takes NAME=VALUE, such as --env DEBUG=1.")
    return found
