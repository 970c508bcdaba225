"""Training runs from beginning to end: `run`, `evaluate` and `read_run` make and read them from Python
(`docs/python.md`); the command line has the same as `ale run` and `ale eval`.

The package is built in floors, the lowest first. A file imports from its own floor or from one below:

    1  batches  config  migration  observers  task_mixture
    2  models  starts  workbench
    3  checkpoints  display  evaluation
    4  rl  show  supervised
    5  pipeline
    6  commands
    7  python_api  qualification
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ale_train.python_api.results import Result, read_run
    from ale_train.python_api.runs import evaluate, evaluate_async, run, run_async

__all__ = ["Result", "evaluate", "evaluate_async", "read_run", "run", "run_async"]


def __getattr__(name: str) -> Any:
    """Return a function of the Python API; it is imported when it is first used, so that one part of this package can
    be imported without the others."""
    if name in __all__:
        from ale_train import python_api

        return getattr(python_api, name)
    raise AttributeError(f"module 'ale_train' has no attribute '{name}'")


def __dir__() -> list[str]:
    """Return what is public."""
    return [*__all__]
