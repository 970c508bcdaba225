"""Imports Python files by their paths, and modules by their names. Every mistake is a `ConfigError` with a sentence."""

from __future__ import annotations

import base64
import hashlib
import importlib
import re
import sys
import traceback
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from ale.errors import ConfigError
from ale.registry.validation import describe_error, one_line_error

PACKAGE = __name__.rpartition(".")[0]
_NAME = re.compile(rf"{re.escape(PACKAGE)}\.\w*_(?P<digest>[0-9a-f]{{12}})_(?P<path>[a-z2-7]+)")


class UserFiles(MetaPathFinder):
    """Finds the modules of this package that are files of the user's."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module of a file. Raises `ImportError` if the file is gone or has another text."""
        match = _NAME.fullmatch(fullname)
        if match is None:
            return None
        file = _decode_path(match["path"])
        try:
            text = file.read_bytes()
        except OSError as error:
            raise ImportError(f"the file {file} cannot be read: {one_line_error(error)}") from None
        if _digest(text) != match["digest"]:
            raise ImportError(
                f"the file {file} was changed while the run goes on, so this process cannot have the same code as the "
                "others; put its text back, or go on with the run's own copy (ale run --resume RUN)"
            )
        return spec_from_file_location(fullname, file, loader=UserFileLoader(fullname, str(file), text))


class UserFileLoader(SourceFileLoader):
    """Imports the text that was read. It uses and writes no `__pycache__`, which may be older than the text."""

    def __init__(self, fullname: str, path: str, text: bytes) -> None:
        super().__init__(fullname, path)
        self.text = text

    def get_code(self, fullname: str) -> CodeType:
        """Compile the text."""
        return self.source_to_code(self.text, self.path)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, which may import what lies beside it."""
        _add_to_path(Path(self.path).parent)
        super().exec_module(module)


def import_file(path: Path) -> ModuleType:
    """Import a file, once for each text that it has. Raises `ConfigError`."""
    try:
        file = path.expanduser().resolve()
        if not file.is_file():
            raise ConfigError(f"there is no file {path} (looked for {file}).")
        text = file.read_bytes()
    except (OSError, RuntimeError, ValueError) as error:  # for example a loop of links, or a NUL in the name
        raise ConfigError(f"the file {str(path)!r} cannot be read: {one_line_error(error)}.") from None
    if file.suffix != ".py":
        raise ConfigError(f"the file {path} is no Python file; its name must end in .py.")
    try:
        return importlib.import_module(_module_name(file, text))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the file may raise anything, SystemExit and AssertionError included
        raise ConfigError(
            f"the file {path} cannot be imported: {describe_error(error)}{line_in(error, file)}."
        ) from error


def import_module(name: str) -> ModuleType:
    """Import a module by its name, also from the current folder. Raises `ConfigError`."""
    search_current_folder()
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ConfigError(f"the module '{name}' cannot be imported: {describe_error(error)}.") from error


def text_of(module: ModuleType) -> bytes | None:
    """Return the text of a module as it was imported; None if it has none (an extension module, say)."""
    loader = module.__spec__.loader if module.__spec__ is not None else None
    if isinstance(loader, UserFileLoader):
        return loader.text
    file = getattr(module, "__file__", None)
    return Path(file).read_bytes() if file and file.endswith(".py") else None


def show_path(path: Path | str) -> str:
    """Return a path for a sentence: relative to the current folder if it lies there."""
    path = Path(path)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def line_in(error: BaseException, file: Path | str) -> str:
    """Return ` (FILE, line N)` for the last line of a file that an error passed through, or nothing."""
    if isinstance(error, SyntaxError):
        return ""  # its message has the line
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return f" ({Path(file).name}, line {lines[-1]})" if lines else ""


def search_current_folder() -> None:
    """Let modules be found in the current folder; whatever else has the same name comes first."""
    _add_to_path(Path.cwd())


def _add_to_path(folder: Path) -> None:
    """Let the user's modules import what lies beside them; whatever else has the same name comes first."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _module_name(file: Path, text: bytes) -> str:
    path = base64.b32encode(str(file).encode("utf-8", "surrogateescape")).decode().rstrip("=").lower()
    return f"{PACKAGE}.{re.sub(r'[^A-Za-z0-9]', '_', file.stem)}_{_digest(text)}_{path}"


def _decode_path(encoded: str) -> Path:
    whole = encoded.upper() + "=" * (-len(encoded) % 8)
    return Path(base64.b32decode(whole).decode("utf-8", "surrogateescape"))


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:12]
