"""EnvHub's data: what is registered, how an environment is made from it, and the bodies of requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ale.specs.sandbox import NetworkMode, Resources, SandboxSpec
from ale_rock.schemas import Name

_VERSION = re.compile(r"(.+)@(\d{1,9})", re.DOTALL)


@dataclass(frozen=True)
class EnvironmentPlan:
    """How an environment is made."""

    env_id: str
    """Its name in its library: `game:GuessTheNumber-v0-easy`, or `module:Class`; or `ale:SOURCE/SPLIT/TASK`."""
    spec: SandboxSpec = field(default_factory=SandboxSpec)
    settings: Mapping[str, Any] = field(default_factory=dict)
    python: str = "python3"
    """The Python in the sandbox that has the library."""
    start_up: str | None = None
    """A command that runs in the sandbox first."""
    agents: tuple[str, ...] = ()
    separate: bool = False
    """Whether each agent has a sandbox of its own."""

    def __post_init__(self) -> None:
        if len(set(self.agents)) < len(self.agents) or "" in self.agents:
            raise ValueError("agents: each needs a name of its own")
        if self.separate and not self.agents:
            raise ValueError("sandboxes: separate sandboxes are for several agents; name them as `agents`")


class Recipe(BaseModel):
    """The keys of an environment's `extra_spec` that the service reads, and that `/make` may name. Other keys are for
    the user."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    env: str | None = Field(None, min_length=1, description="Its name in its library; null: the name in EnvHub.")
    settings: dict[str, Any] = Field(default_factory=dict, description="Arguments with which it is made.")
    python: str = Field("python3", min_length=1, description="Python in the image that has its library.")
    start_up: str | None = Field(None, description="Shell command that runs first.")
    network: NetworkMode = Field("none", description="What its sandbox reaches.")
    resources: Resources = Field(Resources(), description="Limits of its sandbox.")
    agents: tuple[str, ...] = Field((), max_length=64, description="Names of its agents, if it is for several.")
    sandboxes: Literal["shared", "separate"] = Field(
        "shared", description="Whether its agents act in one sandbox, or each in a sandbox of its own."
    )


class Environment(BaseModel):
    """An environment, as ROCK's client reads it: exactly these fields."""

    env_name: Name
    image: str = Field(max_length=512)
    owner: str = Field("", max_length=256)
    description: str = ""
    tags: list[str] = []
    extra_spec: dict[str, Any] | None = None
    create_at: str = ""
    update_at: str = ""

    def plan(self) -> EnvironmentPlan:
        """Return how it is made. Raises `ValueError` for an invalid `extra_spec`."""
        recipe = Recipe.model_validate(self.extra_spec or {})
        return EnvironmentPlan(
            recipe.env or split_version(self.env_name)[0],
            SandboxSpec(image=self.image or None, network=recipe.network, resources=recipe.resources),
            recipe.settings,
            recipe.python,
            recipe.start_up,
            recipe.agents,
            recipe.sandboxes == "separate",
        )


class EnvironmentVersion(Environment):
    """One registration, with who made it and when."""

    version: int
    user: str = Field(description="Whose it is; the empty text: everybody's.")
    registered_by: str = Field(description="The user, or the role of whoever registered it.")
    image_digest: str | None = Field(description="What the image's name meant then, where that is known.")
    deleted_at: str | None


class NamedEnvironment(BaseModel):
    """`/env/get` and `/env/delete`."""

    env_name: Name
    user: str | None = Field(None, description="Whose, for an admin; null: everybody's.")


class ListEnvironments(BaseModel):
    """`/env/list`."""

    owner: str | None = None
    tags: list[str] | None = None


def split_version(name: str) -> tuple[str, int | None]:
    """Return the name and the version of `NAME@VERSION`; without a version, None."""
    match = _VERSION.fullmatch(name)
    return (match[1], int(match[2])) if match else (name, None)
