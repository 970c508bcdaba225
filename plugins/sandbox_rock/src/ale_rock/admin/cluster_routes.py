"""ROCK's routes about its own cluster: answered where they mean something here, and else refused in a sentence."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ale_rock.admin.auth import Gate
from ale_rock.admin.responses import caller_of, rock_route, rock_success
from ale_rock.admin.sandbox_lookup import find
from ale_rock.admin.service import Service
from ale_rock.schemas import ROCK_BASE, RockError

REFUSED = {
    "/get_nacos_config": (
        ["GET"],
        "This service has no Nacos: its settings are those of `ale rock serve --settings FILE`.",
    ),
    "/host/proxy/{path:path}": (
        ["POST"],
        "This service passes no requests on to machines: ask for a sandbox, and send them to it.",
    ),
    "/ops/tasksets": (
        ["POST"],
        "This service runs no maintenance tasks on request: workers remove what they no longer need by themselves, and "
        "`ale rock warm IMAGE` brings an image to every machine.",
    ),
    "/ops/tasksets/{taskset_id}": (
        ["GET"],
        "This service has no maintenance tasks; `ale rock status` shows its state.",
    ),
    "/proxy/{sandbox_id}/{path:path}": (
        ["GET", "POST"],
        "Programs in a sandbox are reached at /sandboxes/{sandbox_id}/proxy/{path}.",
    ),
}


def make_router(service: Service, gate: Gate) -> APIRouter:
    """Make the routes."""
    router = APIRouter(prefix=ROCK_BASE, route_class=rock_route(gate), tags=["Sandbox"])

    @router.get("/sandboxes/{sandbox_id}/mount-infos")
    async def mounts(request: Request, sandbox_id: str) -> Response:
        """Return the folders of the machine that a sandbox has for its client, as options of Docker: none."""
        await find(service, sandbox_id, caller_of(request), ended_too=True)
        return rock_success("")

    def refuse(path: str, methods: list[str], sentence: str) -> None:
        async def refused(request: Request) -> Response:
            raise RockError(sentence)

        router.add_api_route(path, refused, methods=methods, include_in_schema=False)

    for path, (methods, sentence) in REFUSED.items():
        refuse(path, methods, sentence)
    return router
