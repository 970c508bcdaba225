"""Classes that are no installed plugins: `use: ./mine.py:Mine` names one in a file, `use: package.module:Mine` one in a
module. For an observer it may also be an object, a function with `hookimpl`, or, without a name, the whole file.

What is before the colon decides: with the ending `.py` it is a file; else, if that package brings a plugin of the kind
with this name, it is that plugin; else it is a module (`ale.registry.drivers`).
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from ale.errors import ConfigError
from ale.registry.user_files import import_file, import_module, show_path
from ale.registry.validation import nearest_hint
from ale.specs.kinds import HOOKS

_FILE = re.compile(r"(?P<file>.*\.py)(:(?P<name>[^/:]*))?", re.DOTALL)
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def split_file(use: str) -> tuple[str, str] | None:
    """Return the file and the name in it, which may be empty; None if `use` names no file."""
    match = _FILE.fullmatch(use)
    return (match["file"], match["name"] or "") if match is not None else None


def join_file(file: str, name: str) -> str:
    """Return what `use` says for a name in a file."""
    return f"{file}:{name}" if name else file


def may_be_module(use: str) -> bool:
    """Return whether it has the form `package.module:Name`."""
    return _MODULE.fullmatch(use) is not None


def import_place(use: str) -> ModuleType:
    """Import the file or the module of `use`. Raises `ConfigError`."""
    split = split_file(use)
    return import_file(Path(split[0])) if split is not None else import_module(use.partition(":")[0])


def find_class(kind: str, use: str) -> Any:
    """Return the class that `use` names in a file or module, or for an observer something else with hooks. Raises
    `ConfigError`."""
    module = import_place(use)
    place, name = split_file(use) or use.split(":")
    shown = show_path(place) if split_file(use) else f"the module {place}"
    if not name and kind == HOOKS:
        return module
    there = ", ".join(_list_names(kind, module)) or "none"
    if not name:
        raise ConfigError(f"which class of {shown}? Write {place}:NAME. It has: {there}.")
    found = getattr(module, name, None)
    if found is None and place == "__main__":
        raise ConfigError(
            f"the class '{name}' is in the script or notebook of the process that began this run, and this is another "
            f"process. Put it into a file and name it there, such as FILE.py:{name}."
        )
    if found is None:
        raise ConfigError(
            f"{shown} has no class '{name}'.{nearest_hint(name, _list_names(kind, module))} It has: {there}."
        )
    if kind == HOOKS and inspect.isroutine(found) and _is_hook(found):
        return SimpleNamespace(**{name: found})
    return found


def _list_names(kind: str, module: ModuleType) -> list[str]:
    """Return what a run file could name in a module: the classes that are written there, and functions with hooks."""
    return [
        name
        for name, found in vars(module).items()
        if not name.startswith("_")
        and getattr(found, "__module__", "") == module.__name__
        and (inspect.isclass(found) or (kind == HOOKS and _is_hook(found)))
    ]


def _is_hook(found: Any) -> bool:
    """Return whether a function carries `hookimpl`."""
    from ale.specs.events import PROJECT  # pluggy is imported only where an observer is named

    return hasattr(found, f"{PROJECT}_impl")
