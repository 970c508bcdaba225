"""ALE trains agents that act. This package holds contracts, plugin loading and rollouts; see `docs/` for the guide.

`ale.run`, `ale.evaluate` and `ale.read_run` make and read runs from Python (`docs/python.md`).
"""

from typing import Any

__version__ = "0.1.0"
_PYTHON_API = ("run", "run_async", "evaluate", "evaluate_async", "read_run")


def __getattr__(name: str) -> Any:
    """Return a function of the Python API, which a package brings through the entry-point group `ale.python`; it is
    imported when it is first used, so that `import ale` is instant."""
    if name in _PYTHON_API:
        from importlib import metadata

        for entry in metadata.entry_points(group="ale.python", name=name):
            return entry.load()
        raise AttributeError(f"no installed package brings ale.{name}; `pip install ale-python-api` does")
    raise AttributeError(f"module 'ale' has no attribute '{name}'")
