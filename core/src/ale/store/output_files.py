"""Files and folders that a user names for results, as in `--out` and `run_dir`.

1. A place where nothing can be made is refused in a sentence, if possible before any work is done for it.
2. Nothing is left half-written: a file appears whole, and folders that were made for a refused place are removed.
"""

from __future__ import annotations

import errno
import os
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ale.errors import ConfigError

DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT)
LONGEST_SHOWN = 200
"""The characters of a path in a sentence."""


def file_at(out: Path | None, default: Path) -> Path:
    """Return the file that `--out` names: itself, or the default's name in a folder that exists."""
    if out is None:
        return default
    return out / default.name if os.path.isdir(out) else out


def shorten_path(path: Path) -> str:
    """Return a path for a sentence; of one that is very long, its beginning and its end."""
    name, half = str(path).replace("\0", "\\0"), LONGEST_SHOWN // 2
    return name if len(name) <= LONGEST_SHOWN else f"{name[:half]}...{name[-half:]}"


def make_folder(folder: Path, what: str = "folder") -> Path:
    """Make a folder and those above it; it may exist. Raises `ConfigError` if it cannot be made or written to."""
    _make(folder, what)
    return folder


def check_folder(folder: Path, what: str = "folder") -> None:
    """Raise `ConfigError` if a folder cannot be made or written to. Nothing is left behind."""
    _remove(_make(folder, what))


def check_file(path: Path, what: str = "file") -> None:
    """Raise `ConfigError` if a file cannot be written. Nothing is left behind, and an old file stays as it is."""
    target = _target(path, what)
    made = _make(target.parent, f"folder of the {what}")
    try:
        if os.path.isdir(target):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not os.path.lexists(target):
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            target.unlink()
    except OSError as error:
        raise _refusal(path, what, "written", error) from None
    finally:
        _remove(made)


def write_output(path: Path, content: str | bytes, what: str = "file") -> Path:
    """Write a file completely or not at all, and make the folders above it. Raises `ConfigError` if that fails, except
    for a full disk, which is an `OSError`."""
    made = _make(_target(path, what).parent, f"folder of the {what}")
    try:
        return write_whole(path, content)
    except OSError as error:
        _remove(made)
        if error.errno in DISK_IS_FULL:
            raise
        raise _refusal(path, what, "written", error) from None


def write_whole(path: Path, content: str | bytes) -> Path:
    """Write a file completely or not at all. A device such as `/dev/null` is written to, not replaced."""
    data = content.encode("utf-8", "replace") if isinstance(content, str) else content
    if os.path.exists(path) and not os.path.isfile(path):
        path.write_bytes(data)
        return path
    target = Path(os.path.realpath(path))  # a link stays one
    temporary = target.with_name(f".ale-{uuid.uuid4().hex[:12]}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return path


def _target(path: Path, what: str) -> Path:
    """Return the file to which a link leads, or the path itself."""
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError) as error:
        raise _refusal(path, what, "written", error) from None


def _make(folder: Path, what: str) -> Sequence[Path]:
    """Make a folder and try it; return what was made, the innermost first."""
    missing = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    try:
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
        os.rmdir(tempfile.mkdtemp(prefix=".ale-", dir=folder))
    except (OSError, ValueError) as error:
        _remove(missing)
        if isinstance(error, OSError) and error.errno in DISK_IS_FULL:
            raise
        made_or_written = "written to" if os.path.isdir(folder) else "made"
        raise _refusal(folder, what, made_or_written, error) from None
    return missing


def _remove(folders: Sequence[Path]) -> None:
    """Remove folders, unless something is in them by now."""
    for folder in folders:
        with suppress(OSError, ValueError):
            folder.rmdir()


def _refusal(path: Path, what: str, verb: str, error: OSError | ValueError) -> ConfigError:
    why = "No file can have this name" if isinstance(error, ValueError) else error.strerror or str(error)
    return ConfigError(f"The {what} {shorten_path(path)} cannot be {verb}: {why.rstrip('.')}. Name another one.")
