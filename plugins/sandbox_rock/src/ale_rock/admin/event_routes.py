"""What happened lately in the service, for `ale rock logs`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from ale_rock.admin.answers import answer, caller_of, plain_route
from ale_rock.admin.auth import Gate
from ale_rock.admin.overview import seen_by
from ale_rock.admin.service import Service
from ale_rock.wire import ALE_BASE


def make_router(service: Service, gate: Gate) -> APIRouter:
    """Make the route."""
    router = APIRouter(prefix=ALE_BASE, route_class=plain_route(gate, "admin", "user"), tags=["ALE"])

    @router.get("/events")
    async def events(request: Request, after: Annotated[float, Query(ge=0)] = 0.0) -> Response:
        """Return the latest events of workers, and of the sandboxes that the caller sees, the oldest first; those that
        happened after a time (seconds since 1970)."""
        found = seen_by(caller_of(request), service.fleet.recent)
        return answer({"events": [asdict(each) for each in found if each.at > after]})

    return router
