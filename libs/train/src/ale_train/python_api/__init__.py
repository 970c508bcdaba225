"""Runs and evaluations from Python; `ale_train.run` and the others are these."""

from ale_train.python_api.results import Result, read_run
from ale_train.python_api.runs import evaluate, evaluate_async, run, run_async

__all__ = ["Result", "evaluate", "evaluate_async", "read_run", "run", "run_async"]
