"""Functions that Python code passes to a run, and the names by which its run file calls them.

1. What other processes can import gets the name `module:function`.
2. What they cannot (functions of a notebook, a REPL or a script, lambdas, closures, methods) gets `<memory>:function`.
   It is held until this process ends, so that a run can be evaluated or resumed after it. In another process,
   `load_function` refuses such a name with a sentence.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ale.errors import ConfigError

MEMORY = "<memory>"
"""It stands where other functions have their module."""
_ANOTHER = "~"
"""It precedes the number of another function of the same name."""
_held: dict[str, Callable[..., Any]] = {}


def name_function(function: Callable[..., Any]) -> str:
    """Return the name of a function for a run file, and hold the function if only this process has it."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    name = str(getattr(function, "__name__", type(function).__name__))
    if module is not None and is_importable(module) and getattr(module, name, None) is function:
        return f"{module.__name__}:{name}"
    held, number = name, 1
    while held in _held and _held[held] != function:
        number += 1
        held = f"{name}{_ANOTHER}{number}"
    _held[held] = function
    return f"{MEMORY}:{held}"


def find_held(name: str) -> tuple[Callable[..., Any], str]:
    """Return the function that is held under a name, and the function's own name. Raises `ConfigError`."""
    own = name.partition(_ANOTHER)[0]
    if name not in _held:
        new = own if own.isidentifier() else "NAME"
        raise ConfigError(
            f"the function '{own}' is in the memory of the process that began this run, and this is another process. "
            f"Pass it again from Python, or put it into a file and name it there, such as FILE.py:{new}."
        )
    return _held[name], own


def is_importable(module: Any) -> bool:
    """Return whether other processes can import a module of this one: not if it is a notebook, a REPL or a script."""
    return module is not None and module.__name__ != "__main__" and getattr(module, "__spec__", None) is not None
