"""ALE trains agents that act. This package holds contracts, plugin loading and rollouts; see `docs/` for the guide.

`dir(ale)` shows what is public: the nouns of every plugin, and where `ale-train` is installed, runs from beginning to
end (`ale.run`, `ale.evaluate`, `ale.read_run`). All are imported when they are first used. The contracts of plugins are
in `ale.specs`.
"""

import importlib
import importlib.util
from typing import Any

__version__ = "0.1.0"

_TRAINING = "ale_train"
_PLACES = {
    "AleError": "ale.errors",
    "ConfigError": "ale.errors",
    "Message": "ale.messages",
    "Task": "ale.task",
    "Score": "ale.trajectory",
    "Trajectory": "ale.trajectory",
    **dict.fromkeys(("Result", "evaluate", "evaluate_async", "read_run", "run", "run_async"), _TRAINING),
}
__all__ = sorted(name for name, place in _PLACES.items() if place != _TRAINING)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'ale' has no attribute '{name}'; it has {', '.join(sorted(_PLACES))}")
    try:
        module = importlib.import_module(_PLACES[name])
    except ModuleNotFoundError as error:
        if error.name != _TRAINING:
            raise
        raise AttributeError(f"ale.{name} comes with the package ale-train: `pip install ale-train`") from None
    return getattr(module, name)


def __dir__() -> list[str]:
    is_there = importlib.util.find_spec(_TRAINING) is not None
    return ["__version__", *(name for name, place in _PLACES.items() if place != _TRAINING or is_there)]
