"""What workers report: that they are there, that they live, and which of their sandboxes ended."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from ale_rock.admin.auth import Gate
from ale_rock.admin.responses import answer, plain_route
from ale_rock.admin.watch import Watch
from ale_rock.schemas import WORKERS_BASE, Heartbeat, Register


def make_router(watch: Watch, gate: Gate) -> APIRouter:
    """Make the routes."""
    router = APIRouter(prefix=WORKERS_BASE, route_class=plain_route(gate, "worker"), tags=["Workers"])

    @router.post("/heartbeat")
    async def heartbeat(body: Heartbeat) -> Response:
        """A worker lives; it says so as often as it was told when it registered."""
        return answer(watch.heartbeat(body))

    @router.post("/register")
    async def register(body: Register) -> Response:
        """A worker offers itself, with the sandboxes that it holds already."""
        return answer(await watch.register(body))

    return router
