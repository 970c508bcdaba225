"""GEM's API: plain JSON; an error is `{"detail": sentence}` with an HTTP status of 400 or more.

An environment is made as EnvHub says: the caller's own environment of that name, or else everybody's; `NAME@3` is the
third version of it. An environment that EnvHub does not know is made by its id, in a sandbox of the default image;
`ale:SOURCE/SPLIT/TASK` is a task of ALE. Other fields in the body of `/make` replace those of EnvHub. In an environment
of several agents, actions and the parts of the answers are objects with a key for each agent.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar

from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, Field

from ale.errors import ConfigError, PluginError, SandboxError, TaskError
from ale.registry.validation import one_line_error
from ale_rock.admin.auth import Caller, Gate
from ale_rock.admin.responses import caller_of, plain_route
from ale_rock.envhub.image_digests import ImageDigests
from ale_rock.envhub.models import Environment, EnvironmentPlan, EnvironmentVersion, Recipe, split_version
from ale_rock.envhub.routes import missing, users_of
from ale_rock.envhub.store import EnvHub
from ale_rock.gem.environments import Action, Environments
from ale_rock.schemas import Name, SandboxId

T = TypeVar("T")
GEM_BASE = "/apis/v1/envs/gem"


class MakeEnvironment(Recipe):
    """`/make`. ROCK's client sends the name alone; each other field replaces that of EnvHub."""

    env_id: Name
    image: str | None = Field(None, max_length=512, description="Image of its sandbox.")

    def plan(self, known: Environment | None) -> EnvironmentPlan:
        """Return how it is made. Raises `ValueError` if EnvHub's fields and these do not fit together."""
        base = Environment(env_name=self.env_id, image="") if known is None else known
        own = self.model_dump(mode="json", exclude_unset=True, exclude={"env_id", "image"})
        image = base.image if self.image is None else self.image
        return base.model_copy(update={"image": image, "extra_spec": {**(base.extra_spec or {}), **own}}).plan()


class EnvironmentRef(BaseModel):
    """`/close` and `/list`; the other requests have these fields, too."""

    sandbox_id: SandboxId


class ResetEnvironment(EnvironmentRef):
    """`/reset`."""

    seed: int | None = None


class StepEnvironment(EnvironmentRef):
    """`/step`."""

    action: Action


class Closed(BaseModel):
    """The answer to `/close`."""

    sandbox_id: str


class Made(Closed):
    """The answer to `/make`."""

    sandboxes: dict[str, str] = Field({}, description="The sandbox of each agent, if each has its own.")


class Observed(BaseModel):
    """The answer to `/reset`."""

    observation: Any
    info: dict[str, Any] = Field(default_factory=dict)


class Stepped(Observed):
    """The answer to `/step`."""

    reward: float | dict[str, float]
    terminated: bool | dict[str, bool]
    truncated: bool | dict[str, bool]


def make_router(environments: Environments[Caller], hub: EnvHub, images: ImageDigests, gate: Gate) -> APIRouter:
    """Make GEM's routes."""
    router = APIRouter(prefix=GEM_BASE, route_class=plain_route(gate, "admin", "user"), tags=["GEM"])

    @router.post("/make")
    async def make(asked: MakeEnvironment, request: Request) -> Made:
        """Make an environment in a sandbox of its own, or in one for each of its agents."""
        caller = caller_of(request)
        known = await hub.find(asked.env_id, users_of(caller))
        if known is None and split_version(asked.env_id)[1] is not None:
            raise missing(asked.env_id)
        try:
            plan = asked.plan(known)
        except ValueError as error:  # pydantic's too
            raise HTTPException(422, f"{asked.env_id} cannot be made like this: {one_line_error(error)}") from None
        sandbox_id = await answered(environments.make(plan, caller))
        if known is not None and asked.image is None and split_version(asked.env_id)[1] is not None:
            await check_image(known, sandbox_id, caller)
        return Made(sandbox_id=sandbox_id, sandboxes=await answered(environments.sandboxes_of(sandbox_id, caller)))

    @router.post("/reset")
    async def reset(asked: ResetEnvironment, request: Request) -> Observed:
        """Begin an episode."""
        return Observed(**await answered(environments.reset(asked.sandbox_id, asked.seed, caller_of(request))))

    @router.post("/step")
    async def step(asked: StepEnvironment, request: Request) -> Stepped:
        """Carry out an action."""
        return Stepped(**await answered(environments.step(asked.sandbox_id, asked.action, caller_of(request))))

    @router.post("/close")
    async def close(asked: EnvironmentRef, request: Request) -> Closed:
        """Remove the environment and its sandboxes."""
        await answered(environments.close(asked.sandbox_id, caller_of(request)))
        return Closed(sandbox_id=asked.sandbox_id)

    @router.post("/list")
    async def list_environments(asked: EnvironmentRef, request: Request) -> dict[str, list[str]]:
        """Return the environments of a sandbox."""
        return {"env_id": await answered(environments.names(asked.sandbox_id, caller_of(request)))}

    async def check_image(known: EnvironmentVersion, sandbox_id: str, caller: Caller) -> None:
        """Refuse a version whose image's name means another image now."""
        there = await images.find_in(sandbox_id, known.image)
        if None not in (there, known.image_digest) and "@" not in known.image and there != known.image_digest:
            await answered(environments.close(sandbox_id, caller))
            raise HTTPException(
                422,
                f"{known.env_name} was registered when {known.image} was {known.image_digest}; that name means {there} "
                "now. Name the image by its digest (NAME@sha256:...), or register a new version.",
            )

    return router


async def answered(work: Awaitable[T]) -> T:
    """Await a call. An error becomes an HTTP error: 422 if it is the caller's fault, 503 if it is the service's."""
    try:
        return await work
    except (ConfigError, TaskError) as error:
        raise HTTPException(422, str(error)) from None
    except (PluginError, SandboxError) as error:
        raise HTTPException(503, str(error)) from None
