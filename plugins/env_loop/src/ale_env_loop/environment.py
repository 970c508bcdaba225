"""What an episode of an environment is: which environment, what a step answers, and who is at fault if it fails.

- What the environment's own code raises in an episode is a `TaskError`: its sentence is recorded and the episode is not
  made again. What it raises when it is imported is a `ConfigError` and ends the run.
- A process or a connection that is lost, and an answer that is late, are `SandboxError`s: the episode is made again.
- A text of the model that is no action at all is an `IllegalAction`. The model gets a message about it, and the episode
  goes on.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ale.errors import TaskError
from ale.messages import Message, Role
from ale.task import Task

Kind = Literal["class", "gymnasium", "gem", "skyrl", "openenv", "openenv-http"]
KINDS: tuple[Kind, ...] = ("gymnasium", "gem", "skyrl", "openenv", "openenv-http")
"""The words before the first colon of an environment's name; without one it is a class of the user's."""
ROLES: tuple[Role, ...] = ("system", "user", "assistant")


class IllegalAction(Exception):
    """A text that is no action of the environment. The message is written for the model."""


@dataclass(frozen=True, slots=True)
class Step:
    """The answer to an action, or to `reset`, which has no reward."""

    messages: tuple[Message, ...]
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False

    @property
    def text(self) -> str:
        """What the model is shown, as one text."""
        return "\n".join(message.content for message in self.messages)

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.terminated or self.truncated


class Environment(ABC):
    """One environment in one episode."""

    @abstractmethod
    async def reset(self, seed: int, row: Mapping[str, Any] | None) -> Step:
        """Begin the episode. Raises `ConfigError`, `SandboxError`, `TaskError`."""

    @abstractmethod
    async def step(self, action: str) -> Step:
        """Carry out an action. Raises `IllegalAction`, `SandboxError`, `TaskError`."""


class EnvironmentSettings(BaseModel):
    """Which environment, and how it is made: settings of the task source that its tasks carry to the scaffold."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    env: str = Field(
        description="The environment: path/to/file.py:Class, package.module:Class, gymnasium:ID, gem:ID, skyrl:ID, "
        "openenv:FOLDER (a server of each episode's own), openenv:URL (sessions of a running server by WebSocket), "
        "or openenv-http:URL."
    )
    python: str | None = Field(
        None, description="Python of the environment's own venv, such as /venvs/gem/bin/python; null: the run's."
    )
    settings: dict[str, Any] = Field(
        default_factory=dict, description="Arguments with which the environment is made: name -> value."
    )
    action: str | None = Field(
        None,
        description="Regular expression that finds the action in the model's text, such as <action>(.*?)</action>: the "
        "last match's group, or all of the match; null: the whole text is the action.",
    )
    observation: str | None = Field(
        None,
        description="The field of OpenEnv's observations that the model is shown; null: all but `metadata`, as JSON.",
    )

    @field_validator("env")
    @classmethod
    def _has_a_form(cls, value: str) -> str:
        kind, name = split_name(value)
        if not name:
            raise ValueError(f"{value!r} names no environment after '{kind}:'")
        if kind == "class":
            where, colon, attribute = name.rpartition(":")
            if not (colon and where and attribute.isidentifier()):
                raise ValueError(
                    f"{value!r} is no environment; write path/to/file.py:Class, package.module:Class, or a name after "
                    f"one of {', '.join(f'{word}:' for word in KINDS)}"
                )
            if where.endswith(".py") and not Path(where).is_file():
                raise ValueError(f"there is no file {where} (looked for in {Path.cwd()})")
        is_url = name.startswith(("http://", "https://"))
        if kind == "openenv-http" and not is_url:
            raise ValueError(f"{value!r} must name a server, such as openenv-http:http://127.0.0.1:8000")
        if kind == "openenv" and not is_url and not (Path(name) / "openenv.yaml").is_file():
            raise ValueError(f"{name} is neither a URL nor a folder with an openenv.yaml")
        return value

    @field_validator("python")
    @classmethod
    def _exists(cls, value: str | None) -> str | None:
        if value is not None and not Path(value).is_file():
            raise ValueError(f"there is no file {value}; name the python of a venv, such as /venvs/gem/bin/python")
        return value

    @field_validator("settings")
    @classmethod
    def _is_json(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"arguments of an environment must be values that JSON can hold: {error}") from None
        return value

    @field_validator("action")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"{value!r} is no regular expression: {error}") from None
        return value

    @model_validator(mode="after")
    def _fits_the_kind(self) -> EnvironmentSettings:
        openenv = self.kind.startswith("openenv")
        if self.settings and openenv:
            raise ValueError("an OpenEnv server is made without 'settings'; give them to the server, or leave them out")
        if self.observation is not None and not openenv:
            raise ValueError("'observation' names a field of OpenEnv's observations; leave it out")
        if self.python is not None and openenv and "://" in self.name:
            raise ValueError("the server at a URL runs already; leave out 'python'")
        return self

    @property
    def kind(self) -> Kind:
        """The library that the environment is of."""
        return split_name(self.env)[0]

    @property
    def name(self) -> str:
        """The environment's name in its library."""
        return split_name(self.env)[1]

    @property
    def key(self) -> str:
        """What two environments must have in common to use one process after the other."""
        return json.dumps([self.env, self.python, self.settings], sort_keys=True)

    def find_action(self, text: str) -> str:
        """Return the action in the model's text. Raises `IllegalAction` if there is none."""
        if self.action is None:
            return text
        found = list(re.finditer(self.action, text, re.DOTALL))
        if not found:
            raise IllegalAction(f"The answer holds no action; it must match {self.action}")
        return found[-1].group(found[-1].lastindex or 0)


class EpisodeSpec(EnvironmentSettings):
    """One episode: `Task.metadata` of a task for the scaffold `env`. Other keys of the metadata are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    seed: int = Field(ge=0, description="Seed that the environment is reset with.")
    row: dict[str, Any] | None = Field(None, description="Data of this episode, from the file `rows`.")


def split_name(env: str) -> tuple[Kind, str]:
    """Split an environment's name into its library and its name there."""
    for kind in KINDS:
        if env.startswith(f"{kind}:"):
            return kind, env[len(kind) + 1 :]
    return "class", env


def read_episode(task: Task) -> EpisodeSpec:
    """Return the episode that a task describes. Raises `TaskError`."""
    try:
        return EpisodeSpec.model_validate(task.metadata)
    except ValidationError as error:
        found = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'metadata'}: {e['msg']}" for e in error.errors())
        raise TaskError(
            f"The task '{task.id}' is no episode of an environment ({found}). The scaffold 'env' takes tasks of the "
            "task source 'env', or tasks whose metadata have 'env' and 'seed'."
        ) from None


def read_step(answer: Any, where: str) -> Step:
    """Return a step from its JSON object. Raises `TaskError` if it cannot be used; `where` begins the sentence."""
    reward = answer["reward"]
    if not math.isfinite(reward):
        raise TaskError(f"{where} answered with the reward {reward!r}; a reward must be a finite number.")
    messages = tuple(
        Message(role if (role := message["role"]) in ROLES else "user", message["content"])
        for message in answer["messages"]
    )
    return Step(messages or (Message("user", ""),), float(reward), answer["terminated"], answer["truncated"])
