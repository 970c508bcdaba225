"""Routes that workers call: to register, and to report that they live and which of their sandboxes ended."""

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
        """Take in a heartbeat, which a worker sends as often as the answer to its registration says."""
        return answer(watch.heartbeat(body))

    @router.post("/register")
    async def register(body: Register) -> Response:
        """Register a worker, with the sandboxes that it already has."""
        return answer(await watch.register(body))

    return router
