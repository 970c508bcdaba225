"""Folders and entries of one sandbox: `filesystem.Filesystem`, by `find` (GNU), `mkdir`, `mv` and `rm` in it.

A path is absolute, or below the sandbox's work folder, which is where E2B has its home.
"""

from __future__ import annotations

import posixpath
import shlex
from datetime import UTC, datetime
from typing import Any

from ale.specs.sandbox import ExecResult, Sandbox
from ale_rock.schemas import RockError
from ale_rock.worker.envd.connect import ConnectError
from ale_rock.worker.validation import check_path

TYPES = {"f": "FILE_TYPE_FILE", "d": "FILE_TYPE_DIRECTORY", "l": "FILE_TYPE_SYMLINK"}
FIELDS = ("%y", "%s", "%m", "%M", "%u", "%g", "%T@", "%l", "%p")
FORMAT = r"\0".join(FIELDS) + r"\0"
MOST_DEPTH = 1000
MOST_BYTES = 1 << 25
LONGEST_S = 60.0
MISSING, NO_FOLDER, EXISTS = 90, 91, 92
"""Exit codes of the texts below."""


def absolute(sandbox: Sandbox, path: object) -> str:
    """Return the absolute path that a request means. Raises `ConnectError`."""
    try:
        given = check_path(path if isinstance(path, str) else "")
    except RockError as error:
        raise ConnectError("invalid_argument", error.sentence) from None
    if given == "~" or given.startswith("~/"):
        given = f".{given[1:]}"
    return posixpath.normpath(posixpath.join(sandbox.spec.workdir, given)).replace("//", "/")


async def list_folder(sandbox: Sandbox, path: str, depth: int) -> list[dict[str, Any]]:
    """Return the entries of a folder, down to a depth. Raises `ConnectError` or `SandboxError`."""
    named = shlex.quote(path)
    done = await _run(
        sandbox,
        f"if [ ! -d {named} ]; then {_fail(path)}; fi; "
        f"exec find -H {named} -mindepth 1 -maxdepth {min(depth or 1, MOST_DEPTH)} -printf {shlex.quote(FORMAT)}",
        path,
    )
    if done.truncated:
        raise ConnectError("resource_exhausted", f"{path} has too many entries for one list; choose a smaller depth.")
    if done.exit_code and not done.stdout:
        raise _failure(done)
    return sorted(_entries(done.stdout), key=lambda entry: str(entry["path"]))


async def stat(sandbox: Sandbox, path: str) -> dict[str, Any]:
    """Return an entry. Raises `ConnectError` or `SandboxError`."""
    named = shlex.quote(path)
    text = f"[ -e {named} ] || [ -L {named} ] || exit {MISSING}; "
    done = await _run(sandbox, f"{text}exec find {named} -maxdepth 0 -printf {shlex.quote(FORMAT)}", path)
    if done.exit_code or not done.stdout:
        raise _failure(done)
    return _entries(done.stdout)[0]


async def make_folder(sandbox: Sandbox, path: str) -> dict[str, Any]:
    """Make a folder and those above it. Raises `ConnectError` or `SandboxError`."""
    named = shlex.quote(path)
    text = f"if [ -d {named} ]; then exit {EXISTS}; fi; if [ -e {named} ]; then exit {NO_FOLDER}; fi; "
    await _change(sandbox, f"{text}exec mkdir -p -- {named}", path)
    return await stat(sandbox, path)


async def move(sandbox: Sandbox, source: str, target: str) -> dict[str, Any]:
    """Rename an entry; the folders above the new name are made. Raises `ConnectError` or `SandboxError`."""
    old, new, above = map(shlex.quote, (source, target, posixpath.dirname(target)))
    text = f"[ -e {old} ] || [ -L {old} ] || exit {MISSING}; mkdir -p -- {above} && exec mv -fT -- {old} {new}"
    await _change(sandbox, text, source)
    return await stat(sandbox, target)


async def remove(sandbox: Sandbox, path: str) -> None:
    """Remove an entry and what is below it; one that is not there is no error. Raises `ConnectError` or
    `SandboxError`."""
    await _change(sandbox, f"exec rm -rf -- {shlex.quote(path)}", path)


def _fail(path: str) -> str:
    return f"if [ -e {shlex.quote(path)} ]; then exit {NO_FOLDER}; else exit {MISSING}; fi"


async def _change(sandbox: Sandbox, text: str, path: str) -> None:
    done = await _run(sandbox, text, path)
    if done.exit_code:
        raise _failure(done)


async def _run(sandbox: Sandbox, text: str, path: str) -> ExecResult:
    done = await sandbox.exec(text, timeout_s=LONGEST_S, env={"LC_ALL": "C"}, max_output_bytes=MOST_BYTES)
    if done.timed_out:
        raise ConnectError("deadline_exceeded", f"This took more than {LONGEST_S:g} s for {path}.")
    if done.exit_code == MISSING:
        raise ConnectError("not_found", f"There is no {path} in the sandbox.")
    if done.exit_code == NO_FOLDER:
        raise ConnectError("invalid_argument", f"{path} is no folder.")
    if done.exit_code == EXISTS:
        raise ConnectError("already_exists", f"The folder {path} exists already.")
    return done


def _failure(done: ExecResult) -> ConnectError:
    reason = done.stderr.decode("utf-8", "replace").strip()[:1000] or f"exit code {done.exit_code}"
    denied = any(mark in reason for mark in ("Permission denied", "Read-only file system", "not permitted"))
    return ConnectError("permission_denied" if denied else "failed_precondition", reason)


def _entries(output: bytes) -> list[dict[str, Any]]:
    values = [value.decode("utf-8", "replace") for value in output.split(b"\0")[:-1]]
    rows = [values[at : at + len(FIELDS)] for at in range(0, len(values), len(FIELDS))]
    return [_entry(*row) for row in rows if len(row) == len(FIELDS)]


def _entry(
    kind: str, size: str, mode: str, rights: str, owner: str, group: str, changed: str, link: str, path: str
) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": posixpath.basename(path) or "/",
        "type": TYPES.get(kind, "FILE_TYPE_UNSPECIFIED"),
        "path": path,
        "size": size,  # a 64-bit number is a text in JSON
        "mode": int(mode, 8),
        "permissions": rights,
        "owner": owner,
        "group": group,
        "modifiedTime": datetime.fromtimestamp(float(changed), UTC).isoformat().replace("+00:00", "Z"),
    }
    if kind == "l":
        entry["symlinkTarget"] = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    return entry
