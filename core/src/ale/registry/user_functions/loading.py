"""Imports a function of the user's from a file or from a module, and reads its signature.

1. A file is imported once for each state that it has on disk, under a name of its own in `sys.modules`, where its
   classes and pickles are found again.
2. Every mistake (no such file, an error in it, no such function, a signature that cannot be called by names) is a
   `ConfigError` that says so; `FunctionSetting.load` is called while a run file is validated.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from ale.errors import ConfigError
from ale.registry.validation import describe_error, nearest_hint
from ale.specs.driver import PluginConfig


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A function of the user's; `where` says where it comes from, such as `score of my_reward.py`."""

    name: str
    where: str
    function: Callable[..., Any]
    parameters: Mapping[str, inspect.Parameter]
    """Its parameters by name, without `*args` and `**kwargs`."""
    takes_all: bool
    """Whether it has `**kwargs`."""
    is_async: bool

    def names(self, parameter: str) -> bool:
        """Return whether its signature names this parameter."""
        return parameter in self.parameters


class FunctionSetting(PluginConfig):
    """A function in a run file."""

    path: Path | None = Field(
        None, description="Python file with the function; a relative path begins in the current folder."
    )
    function: str = Field(
        description="Name of the function in the file `path`; without `path`: module:function or file.py:function."
    )

    def load(self) -> UserFunction:
        """Import the function. Raises `ValueError` with a sentence, as a validator must."""
        try:
            return load_function(self.function, self.path)
        except ConfigError as error:
            raise ValueError(str(error)) from None


def _read_name(value: Any) -> Any:
    return {"function": value} if isinstance(value, str) else value


FunctionName = Annotated[FunctionSetting, BeforeValidator(_read_name)]
"""A function in a run file: a text (`file.py:function`, `module:function`) or a mapping with `path` and `function`."""


def load_function(function: str, path: Path | None = None) -> UserFunction:
    """Import a function by its name in the file `path`, or as `module:function` or `file.py:function`.

    Raises `ConfigError`.
    """
    module_name, colon, name = function.rpartition(":")
    if path is None and not (colon and module_name and name):
        raise ConfigError(
            f"the function {function!r} needs a place: add 'path' with its file, or write file.py:{name or 'NAME'} or "
            f"module:{name or 'NAME'}."
        )
    if path is not None and colon:
        raise ConfigError(f"the function {function!r} names a place, and so does path: {path}; leave one of them out.")
    if path is None and module_name.endswith(".py"):
        path = Path(module_name)
    module = _import_module(module_name) if path is None else _import_file(path)
    return read_signature(_find_in(module, name, module_name if path is None else str(path)), name, module_name or path)


def read_signature(function: Callable[..., Any], name: str, place: object) -> UserFunction:
    """Return a callable with its signature. Raises `ConfigError` if it cannot be called by the names of its
    parameters."""
    where = f"{name} of {place}"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise ConfigError(f"the signature of {where} cannot be read; wrap it in a function with 'def'.") from None
    parameters = {}
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(
                f"the parameter '{parameter.name}' of {where} cannot be given by its name; remove the '/' after it."
            )
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            parameters[parameter.name] = parameter
    takes_all = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    return UserFunction(name, where, function, parameters, takes_all, is_async)


def _find_in(module: ModuleType, name: str, place: str) -> Callable[..., Any]:
    found = getattr(module, name, None)
    if callable(found) and not isinstance(found, type):
        return found  # type: ignore[no-any-return]
    there = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
    what = "has no function" if found is None else "has no function, but something else, under the name"
    raise ConfigError(
        f"{place} {what} '{name}'.{nearest_hint(name, there)} It has: {', '.join(there) or 'no functions'}."
    )


def _import_file(path: Path) -> ModuleType:
    file = path.expanduser().resolve()
    if not file.is_file():
        raise ConfigError(f"there is no file {path} (looked for {file}).")
    stat = file.stat()
    digest = hashlib.sha256(f"{file}\0{stat.st_mtime_ns}\0{stat.st_size}".encode("utf-8", "surrogateescape"))
    name = f"ale_user_{digest.hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"the file {path} is no Python file; its name must end in .py.")
    _add_to_path(file.parent)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(
            f"the file {path} cannot be imported: {describe_error(error)}{line_in(error, file)}."
        ) from error
    return module


def _import_module(name: str) -> ModuleType:
    _add_to_path(Path.cwd())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"the module '{name}' cannot be imported: {describe_error(error)}.") from error


def _add_to_path(folder: Path) -> None:
    """Let the user's modules import what lies beside them; whatever else has the same name comes first."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def line_in(error: BaseException, file: Path | str) -> str:
    """Return ` (FILE, line N)` for the last line of a file that an error passed through, or nothing."""
    if isinstance(error, SyntaxError):
        return ""  # its message has the line
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return f" ({Path(file).name}, line {lines[-1]})" if lines else ""
