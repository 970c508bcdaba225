"""EnvHub's API: plain JSON, errors as `{"detail": sentence}`; and ALE's own route for versions and where they come
from.

A registration decides what runs in the sandbox of everybody who makes that environment. So a caller whose token names a
user sees and makes that user's environments and everybody's, and never another user's. It changes only its own.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request

from ale.registry.validation import one_line_error
from ale_rock.admin.auth import Caller, Gate
from ale_rock.admin.responses import caller_of, plain_route
from ale_rock.envhub.image_digests import ImageDigests
from ale_rock.envhub.models import Environment, EnvironmentVersion, ListEnvironments, NamedEnvironment
from ale_rock.envhub.store import EVERYBODY, EnvHub
from ale_rock.schemas import ALE_BASE, Name


def users_of(caller: Caller, asked: str | None = None) -> tuple[str, ...]:
    """Return the users whose environments a name may mean, in order. Raises `HTTPException` for those of another
    user."""
    if asked is not None and caller.user not in (None, asked):
        raise HTTPException(403, f"The environments of {asked} are for that user and admins.")
    if asked is not None:
        return (asked,)
    return (EVERYBODY,) if caller.user is None else (caller.user, EVERYBODY)


def writer_of(caller: Caller) -> str:
    """Return the user whose environments a caller may write. Raises `HTTPException` if the token names none."""
    if caller.user is None and caller.role != "admin":
        raise HTTPException(
            403, "This token names no user, and what is everybody's is for admins to register or delete."
        )
    return caller.user or EVERYBODY


def make_router(hub: EnvHub, images: ImageDigests, gate: Gate) -> APIRouter:
    """Make EnvHub's routes."""
    router = APIRouter(route_class=plain_route(gate, "admin", "user"), tags=["EnvHub"])

    @router.post("/env/register")
    async def register(wanted: Environment, request: Request) -> Environment:
        """Register an environment: the next version of this name."""
        if "@" in wanted.env_name:
            raise HTTPException(422, f"{wanted.env_name}: a name may hold no @, which stands before a version.")
        caller = caller_of(request)
        writer = writer_of(caller)
        if caller.user is not None:
            wanted = wanted.model_copy(update={"owner": caller.user})
        try:
            wanted.plan()
        except ValueError as error:  # pydantic's too
            raise HTTPException(422, f"extra_spec of {wanted.env_name}: {one_line_error(error)}") from None
        digest = await images.find(wanted.image)
        return await hub.register(wanted, writer, caller.acts_for or caller.role, digest)

    @router.post("/env/get")
    async def get(asked: NamedEnvironment, request: Request) -> Environment:
        """Return an environment: the newest version of a name, or that of NAME@VERSION."""
        found = await hub.find(asked.env_name, users_of(caller_of(request), asked.user))
        if found is None:
            raise missing(asked.env_name)
        return found

    @router.post("/env/list")
    async def list_environments(asked: ListEnvironments, request: Request) -> dict[str, list[Environment]]:
        """Return the newest versions of an owner's environments, with all of these tags."""
        return {"envs": [*await hub.list(listed_users(request), asked.owner, set(asked.tags or ()))]}

    @router.post("/env/delete")
    async def delete(asked: NamedEnvironment, request: Request) -> bool:
        """Delete an environment with all its versions, or one version."""
        caller = caller_of(request)
        writer_of(caller)
        users = users_of(caller, asked.user)
        if await hub.delete(asked.env_name, users[0]):
            return True
        if caller.user is not None and await hub.find(asked.env_name, users):
            raise HTTPException(403, f"The environment {asked.env_name} is everybody's; only an admin deletes it.")
        raise missing(asked.env_name)

    @router.get(f"{ALE_BASE}/environments")
    async def list_versions(
        request: Request,
        env_name: Name | None = None,
        all_versions: bool = False,
        owner: str | None = None,
        tag: Annotated[list[str] | None, Query()] = None,
        user: str | None = None,
    ) -> dict[str, list[EnvironmentVersion]]:
        """Return environments with their versions and who registered them: all, one by name, or all versions of a
        name."""
        if env_name is None:
            users = listed_users(request) if user is None else users_of(caller_of(request), user)
            return {"environments": await hub.list(users, owner, set(tag or ()))}
        users = users_of(caller_of(request), user)
        one = None if all_versions else await hub.find(env_name, users)
        found = [*await hub.versions(env_name, users)] if all_versions else [] if one is None else [one]
        if not found:
            raise missing(env_name)
        return {"environments": found}

    return router


def listed_users(request: Request) -> tuple[str, ...] | None:
    """Return the users whose environments a list shows; None: all."""
    caller = caller_of(request)
    return None if caller.user is None else users_of(caller)


def make_health_router() -> APIRouter:
    """Make the route that needs no token."""
    router = APIRouter(tags=["EnvHub"])

    @router.get("/health")
    async def health() -> dict[str, str]:
        """Say that the service answers."""
        return {"status": "ok"}

    return router


def missing(name: str) -> HTTPException:
    """Return the error for an environment that is not registered."""
    return HTTPException(404, f"There is no environment {name}; `ale rock env list` lists those that are registered.")
