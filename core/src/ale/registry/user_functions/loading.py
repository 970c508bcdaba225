"""Imports a function of the user's from a file or from a module, and reads its signature.

Every mistake (no such file, an error in it, no such function, a signature that cannot be called by names) is a
`ConfigError` that says so; `FunctionSetting.load` is called while a run file is validated.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from ale.errors import ConfigError
from ale.registry.user_files import import_file, import_module
from ale.registry.user_functions.in_memory import MEMORY, find_held
from ale.registry.validation import nearest_hint
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
    if path is None and module_name == MEMORY:
        held, name = find_held(name)
        return read_signature(held, name, getattr(held, "__module__", None) or MEMORY)
    if path is None and module_name.endswith(".py"):
        path = Path(module_name)
    module = import_module(module_name) if path is None else import_file(path)
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
