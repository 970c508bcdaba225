"""The reward `python`: one function of the user's, or several weighted ones.

1. The functions are imported when the run file is validated, so that a wrong path, name or signature refuses the run.
2. For each episode a function gets the arguments that it names (`arguments.py`); what it returns becomes a score
   (`returned_scores.py`).
3. A parameter that nothing provides refuses the run when the first task is scored; a column that only later tasks
   lack is the fault of those tasks.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from ale.errors import ConfigError, PluginError, TaskError
from ale.registry.user_functions import FunctionFailed, FunctionSetting, UserFunction, call_function, pick_arguments
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.reward import GradedSandbox, Reward
from ale.specs.sandbox import Sandbox
from ale.task import Task
from ale.trajectory import Score, Trajectory
from ale_rewards.arguments import CompletionForm, as_batch, before_episode, is_batched, offer_arguments
from ale_rewards.returned_scores import combine, read_batch, read_returned

log = logging.getLogger("ale.reward.python")
SANDBOX = "sandbox"


class WeightedFunction(FunctionSetting):
    """One of several functions."""

    weight: float = Field(1.0, allow_inf_nan=False, description="Factor of its value in the sum.")
    name: str | None = Field(None, min_length=1, description="Name in the metrics; null: the function's name.")


class PythonReward(Driver, Reward):
    """Your own reward: one Python function, or several weighted ones."""

    api_version = ">=1.0,<1.2"

    class Config(PluginConfig):
        """Settings of the reward `python`; give either `function` or `functions`."""

        path: Path | None = Field(
            None, description="Python file with the function; a relative path begins in the current folder."
        )
        function: str | None = Field(
            None, description="Name of the function in `path`; without `path`: module:function or file.py:function."
        )
        functions: tuple[WeightedFunction, ...] = Field(
            (),
            description="Several functions, each with `path`, `function`, `weight`, `name`; their sum is the reward.",
        )
        completion_as: CompletionForm = Field(
            "text",
            description="Form of `prompt` and `completion`. text: the instruction and the last reply; messages: lists "
            "of messages in the form of chat completions, as functions of verifiers and conversational ones of TRL "
            "want.",
        )
        pass_at: float = Field(
            1.0, allow_inf_nan=False, description="Smallest value that counts as success; true and false decide alone."
        )
        timeout_s: float = Field(60.0, gt=0, description="Seconds that one call of a function may take.")

        @model_validator(mode="after")
        def _functions_can_be_called(self) -> PythonReward.Config:
            if (self.function is None) == (not self.functions):
                raise ValueError("give either 'function' (with 'path') or a list 'functions'")
            if self.path is not None and self.function is None:
                raise ValueError("'path' goes with 'function'; in a list 'functions' each entry has its own path")
            for _, function in named_functions(self):
                if function.names(SANDBOX) and not function.is_async:
                    raise ValueError(f"{function.where} uses the sandbox, so it must be written with 'async def'")
            return self

    config: Config

    def __init__(self, config: Config, context: DriverContext) -> None:
        super().__init__(config, context)
        self._functions = named_functions(config)
        self._weights = [f.weight for f in config.functions] or [1.0]
        self._was_bound = False

    @classmethod
    def uses_sandbox(cls, config: Config) -> bool:
        """Return whether a function names `sandbox`."""
        return any(function.names(SANDBOX) for _, function in named_functions(config))

    @classmethod
    def objection(cls, config: Config, task: Task) -> str:
        """Return which parameter of a function the task has nothing for."""
        offered = offer_arguments(task, before_episode(task), config.completion_as)
        for _, function in named_functions(config):
            known = as_batch(offered) if is_batched(function) else offered
            try:
                pick_arguments(function, {**known, SANDBOX: None})
            except ConfigError as error:
                return f"reward: the task {task.id}: {error}"
        return ""

    async def score(self, task: Task, sandbox: GradedSandbox, trajectory: Trajectory) -> Score:
        """Raises `PluginError` if a function fails, `TaskError` if none gives a reward."""
        started = time.monotonic()
        calls = [(function, self._bind(function, task, sandbox, trajectory)) for _, function in self._functions]
        self._was_bound = True
        scores: dict[str, tuple[float, Score]] = {}
        for (name, _), weight, (function, arguments) in zip(self._functions, self._weights, calls, strict=True):
            score = await self._call(function, arguments, trajectory)
            if score is not None:
                scores[name] = (weight, score)
        if not scores:
            names = ", ".join(function.where for _, function in self._functions)
            raise TaskError(f"Task {task.id} has no reward: {names} returned None for it.")
        if self.config.functions:
            whole = combine(scores, self.config.pass_at)
        else:
            ((_, whole),) = scores.values()
        return replace(whole, seconds=time.monotonic() - started)

    def _bind(self, function: UserFunction, task: Task, sandbox: Sandbox, trajectory: Trajectory) -> dict[str, Any]:
        """Return the arguments of a call. Raises `ConfigError`, or `TaskError` once a task had what it needs."""
        offered = offer_arguments(task, trajectory, self.config.completion_as)
        if is_batched(function):
            offered = as_batch(offered)
        if function.names(SANDBOX):
            offered[SANDBOX] = sandbox
        try:
            return pick_arguments(function, offered)
        except ConfigError as error:
            sentence = f"Task {task.id}: {error}"
            raise (TaskError(sentence) if self._was_bound else ConfigError(sentence)) from None

    async def _call(self, function: UserFunction, arguments: dict[str, Any], trajectory: Trajectory) -> Score | None:
        try:
            returned = await call_function(function, arguments, self.config.timeout_s)
        except FunctionFailed as error:
            log.info("a reward function failed in episode %s", trajectory.id, exc_info=error.__cause__)
            raise PluginError(f"The reward function {error}") from error
        read = read_batch if is_batched(function) else read_returned
        return read(returned, f"The reward function {function.where}", trajectory, self.config.pass_at)


def named_functions(config: PythonReward.Config) -> list[tuple[str, UserFunction]]:
    """Return the functions of a configuration by their names in the metrics. Raises `ValueError` with a sentence."""
    if config.function is not None:
        loaded = FunctionSetting(path=config.path, function=config.function).load()
        return [(loaded.name, loaded)]
    found = [(setting, setting.load()) for setting in config.functions]
    named = [(setting.name or function.name, function) for setting, function in found]
    twice = [name for name, count in Counter(name for name, _ in named).items() if count > 1]
    if twice:
        raise ValueError(f"several functions are called '{twice[0]}'; tell them apart with 'name'")
    return named
