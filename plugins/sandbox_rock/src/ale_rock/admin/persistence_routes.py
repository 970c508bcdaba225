"""ROCK's routes for what outlives a sandbox: restart, archive and images. `persistence` says what they do."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ale_rock.admin.auth import Gate
from ale_rock.admin.commits import Commits
from ale_rock.admin.persistence import archive, restart
from ale_rock.admin.responses import caller_of, rock_route, rock_success
from ale_rock.admin.sandbox_lookup import find, find_running
from ale_rock.admin.service import Service
from ale_rock.schemas import ROCK_BASE, CommitRequest, SandboxRef


def make_router(service: Service, commits: Commits, gate: Gate) -> APIRouter:
    """Make the routes."""
    router = APIRouter(prefix=ROCK_BASE, route_class=rock_route(gate), tags=["Persistence"])

    @router.post("/restart")
    async def restart_sandbox(request: Request, body: SandboxRef) -> Response:
        """Start a sandbox that was stopped, archived or lost again from the files of its last stop."""
        record = await restart(service, await find(service, body.sandbox_id, caller_of(request), ended_too=True))
        return rock_success(record.start_result())

    @router.post("/sandboxes/{sandbox_id}/restart")
    async def restart_by_path(request: Request, sandbox_id: str) -> Response:
        """Restart a sandbox that the path names."""
        return await restart_sandbox(request, SandboxRef.model_validate({"sandbox_id": sandbox_id}))

    @router.post("/sandboxes/{sandbox_id}/archive")
    async def archive_sandbox(request: Request, sandbox_id: str) -> Response:
        """Keep the files of a stopped sandbox until it is deleted."""
        record = await find(service, sandbox_id, caller_of(request), ended_too=True)
        await archive(service, record)
        return rock_success(f"{record.id} archived")

    @router.post("/commit")
    async def commit(request: Request, body: CommitRequest) -> Response:
        """Make an image of a sandbox, from which the same user's sandboxes start; nothing is pushed to a registry."""
        caller = caller_of(request)
        record, worker = await find_running(service, body.sandbox_id, caller)
        made = await commits.commit(record, worker, caller.acts_for, body.image_tag)
        note = f"The image {made.image_tag} is on the disk of the worker {worker.name}; it is not pushed to a registry."
        return rock_success(made.result(), note)

    @router.get("/commit/{sandbox_id}")
    async def commit_status(request: Request, sandbox_id: str) -> Response:
        """Return how far the latest commit of a sandbox is."""
        record = await find(service, sandbox_id, caller_of(request), ended_too=True)
        return rock_success(commits.latest(record.id).result())

    return router
