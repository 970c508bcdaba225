"""`ale sandbox exec | shell | cp | logs`: commands that work in a sandbox of another process.

Each attaches through the provider (`Attaches`) and detaches when it ends; the sandbox keeps running.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ale.errors import ConfigError, PluginError, SandboxError
from ale.messages import whole_characters
from ale.registry.drivers import build_driver
from ale.registry.installed import list_plugins
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale.specs.sandbox import ExecResult, Sandbox
from ale.specs.sandbox_protocols import Attaches, Logs, Output, Shell, Shells, Streams, Trees, lacks
from ale.store.output_files import check_file, check_folder, shorten_path

OUTPUT_BYTES = 8 << 20
"""How many bytes of a shell command's output are shown at most."""
EXIT = re.compile(r"\s*exit(?:\s+(\d{1,3}))?\s*")


def run(
    sandbox_id: str,
    name: str | None,
    command: list[str],
    *,
    timeout_s: float,
    cwd: str | None,
    env: list[str],
    user: str,
) -> int:
    """Run a command, print its output as it arrives, and return its exit code. The shell runs a single argument."""
    line = command[0] if len(command) == 1 else shlex.join(command)
    variables = _variables(env)
    stdin = b"" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer.read()

    async def work() -> int:
        box = await _attach(sandbox_id, name)
        how: dict[str, Any] = {"timeout_s": timeout_s, "cwd": cwd, "env": variables, "stdin": stdin, "user": user}
        async with box:
            if not isinstance(box, Streams):
                return _print_result(await box.exec(line, **how, max_output_bytes=OUTPUT_BYTES))
            async for part in box.exec_stream(line, **how):
                if isinstance(part, Output):
                    _write_output(part)
                else:
                    return _print_result(part)
        raise SandboxError(f"The sandbox {sandbox_id} did not report how the command ended.")

    _restore_ctrl_c()
    return asyncio.run(work())


def shell(sandbox_id: str, name: str | None, cwd: str | None, user: str, timeout_s: float) -> int:
    """Run line after line in one shell; return the last exit code. Ctrl-C ends only the running line."""
    code = 0
    _restore_ctrl_c()
    with asyncio.Runner() as runner:
        box = runner.run(_attach(sandbox_id, name))
        try:
            if not isinstance(box, Shells):
                raise lacks(box, Shells)
            shell_session = runner.run(box.open_shell(cwd=cwd, user=user))
            for line in _lines(f"{sandbox_id}$ "):
                left = EXIT.fullmatch(line)
                if left is not None:
                    return int(left[1]) % 256 if left[1] else code
                try:
                    code = _print_result(runner.run(_run_in_shell(shell_session, line, timeout_s)))
                except KeyboardInterrupt:
                    if not sys.stdin.isatty():
                        raise
                    code = 130
                    print(file=sys.stderr)
        finally:
            runner.run(box.stop())
    return code


def copy(source: str, target: str, name: str | None) -> None:
    """Copy a file or a folder into a sandbox or out of it; the path inside is written `ID:PATH`."""
    (into, inside_target), (out_of, inside_source) = _sandbox_and_path(target), _sandbox_and_path(source)
    if bool(into) == bool(out_of):
        raise ConfigError("One of the two paths must be in a sandbox, written ID:PATH, and the other on this machine.")
    if "\0" in source + target:
        raise ConfigError("A path cannot hold a NUL byte.")
    if into and not os.path.exists(source):
        raise ConfigError(f"There is no file or folder {shorten_path(Path(source))}.")
    if not inside_target or not inside_source:
        raise ConfigError("A path is empty; write ID:PATH, such as ID:/workspace.")
    if out_of:
        _check_target(Path(target))

    async def work() -> None:
        box = await _attach(into or out_of, name)
        async with box:
            if not isinstance(box, Trees):
                raise lacks(box, Trees)
            try:
                if into:
                    await box.upload_tree(Path(source), await _inside_target(box, source, inside_target))
                else:
                    await _copy_out(box, inside_source, target)
            except OSError as error:
                raise SandboxError(f"Nothing was copied: {error}.") from error

    _restore_ctrl_c()
    asyncio.run(work())


def _check_target(place: Path) -> None:
    """Raise `ConfigError` if nothing can be copied there."""
    if os.path.isdir(place):
        check_folder(place)
    elif not os.path.isdir(place.parent):
        raise ConfigError(f"There is no folder {shorten_path(place.parent)}; make it first.")
    else:
        check_file(place, "copy")


async def _copy_out(box: Trees, source: str, target: str) -> None:
    """Copy out of a sandbox, first beside the target, so that a failed copy changes nothing there."""
    with _folder_beside(target) as folder:
        await box.download_tree(source, folder / "copy")
        _put_in_place(folder / "copy", source, target)


@contextmanager
def _folder_beside(target: str) -> Iterator[Path]:
    """Yield a temporary folder in a target, if it is a folder, or else in the folder above."""
    place = Path(target)
    parent = place if place.is_dir() else place.parent
    with tempfile.TemporaryDirectory(prefix=".ale-cp-", dir=parent) as folder:
        yield Path(folder)


def _put_in_place(copy: Path, source: str, target: str) -> None:
    """Move what was copied to its target as `cp` has it: into a folder that exists under the source's name (for
    `folder/.` what is in it), over a file that exists. No folder is replaced. Raises `ConfigError`."""
    place, name = Path(target), os.path.basename(source.rstrip("/"))
    if name in ("", ".", ".."):
        moves = [(entry, place / entry.name) for entry in copy.iterdir()] if place.is_dir() else [(copy, place)]
    elif target.endswith("/") and not place.is_dir() and not copy.is_dir():
        raise ConfigError(f"There is no folder {target}; make it, or name the copy without the last '/'.")
    else:
        moves = [(copy, place / name if place.is_dir() else place)]
    for new, old in moves:
        if os.path.lexists(old) and (new.is_dir() or (old.is_dir() and not old.is_symlink())):
            raise ConfigError(f"{old} exists already; remove it, or name a new file or folder.")
    for new, old in moves:
        os.replace(new, old)


async def _inside_target(box: Sandbox, source: str, target: str) -> str:
    """Return where a copy into a sandbox goes, as `docker cp` has it: into a folder that exists, under the source's
    name; `folder/.` copies what is in the folder. Raises `ConfigError` if that is a file or is not there."""
    path = shlex.quote(target if target.startswith("/") else f"./{target}")
    found = (await box.exec(f"if [ -d {path} ]; then echo folder; elif [ -e {path} ]; then echo file; fi")).stdout
    folder = Path(source).is_dir()  # noqa: ASYNC240 - a command line that does nothing else meanwhile
    if found == b"folder\n":
        name = Path(source).absolute().name  # noqa: ASYNC240
        contents = folder and (source.endswith("/.") or source == ".")
        return target if contents else f"{target.rstrip('/')}/{name}"
    if found == b"file\n" and (folder or target.endswith("/")):
        raise ConfigError(f"{target} is a file in the sandbox, not a folder; name another target.")
    if not found and target.endswith("/") and not folder:
        raise ConfigError(
            f"There is no folder {target} in the sandbox; make it, or name the copy without the last '/'."
        )
    return target.rstrip("/") or "/"


def logs(sandbox_id: str, name: str | None) -> None:
    """Print the sandbox's journal."""

    async def work() -> str:
        box = await _attach(sandbox_id, name)
        async with box:
            if not isinstance(box, Logs):
                raise lacks(box, Logs)
            return await box.logs()

    print(asyncio.run(work()), end="")


def _sandbox_and_path(path: str) -> tuple[str, str]:
    """Split `ID:PATH`; a path on this machine, such as `./a:b`, has no ID."""
    sandbox_id, colon, inside = path.partition(":")
    return (sandbox_id, inside) if colon and "/" not in sandbox_id else ("", path)


def _restore_ctrl_c() -> None:
    """Make SIGINT raise KeyboardInterrupt again: a process that a script started in the background ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


async def _attach(sandbox_id: str, name: str | None) -> Sandbox:
    """Attach to a sandbox of any provider. Raises with every provider's error if none has it."""
    if whole_characters(sandbox_id) != sandbox_id:
        raise ConfigError(f"A sandbox's id is text in UTF-8, and {sandbox_id!r} is not.")
    names = [name] if name else [info.name for info in list_plugins("sandbox") if info.status == "ok"]
    faults: dict[str, None] = {}
    for use in dict.fromkeys(names):
        try:
            provider = build_driver("sandbox", PluginChoice(use=use), DriverContext(run_id="cli"))
            if not isinstance(provider, Attaches):
                raise lacks(provider, Attaches)
            return await provider.attach(sandbox_id)
        except (ConfigError, PluginError, SandboxError) as error:
            faults[str(error)] = None
    if not faults:
        raise ConfigError("No sandbox provider is installed; `ale plugins list` lists the installed plugins.")
    raise SandboxError("\n".join(faults))


async def _run_in_shell(shell_session: Shell, line: str, timeout_s: float) -> ExecResult:
    return await shell_session.run(line, timeout_s=timeout_s, max_output_bytes=OUTPUT_BYTES)


def _lines(prompt: str) -> Iterator[str]:
    """Yield the lines that are typed or piped in, until the input ends."""
    if not sys.stdin.isatty():
        for line in sys.stdin:
            yield line.rstrip("\n")
        return
    with suppress(ImportError):
        import readline  # noqa: F401  # importing it gives `input` editing and a history
    while True:
        try:
            yield input(prompt)
        except KeyboardInterrupt:
            print(file=sys.stderr)
        except EOFError:
            print(file=sys.stderr)
            return


def _print_result(done: ExecResult) -> int:
    """Write the result's output, say if it was cut or timed out, and return the exit code."""
    _write_output(Output("stdout", done.stdout))
    _write_output(Output("stderr", done.stderr))
    if done.timed_out:
        print(f"ale: the command was ended after {done.duration_s:.0f} s (--timeout)", file=sys.stderr)
    if done.truncated:
        print(f"ale: output beyond {OUTPUT_BYTES >> 20} MiB is left out", file=sys.stderr)
    return done.exit_code


def _write_output(output: Output) -> None:
    """Write output unchanged, as bytes; a slow reader makes the command wait."""
    stream = sys.stdout if output.stream == "stdout" else sys.stderr
    stream.flush()
    stream.buffer.write(output.data)
    stream.buffer.flush()


def _variables(pairs: list[str]) -> dict[str, str]:
    found = dict(pair.partition("=")[::2] for pair in pairs)
    if "" in found or any("=" not in pair for pair in pairs):
        raise ConfigError("--env takes NAME=VALUE, such as --env DEBUG=1.")
    return found
