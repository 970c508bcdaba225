"""Images of tasks, which workers build from Dockerfiles for ALE's own provider (`BuildsDockerfiles`).

All workers that build images build it at once, so that sandboxes can start on each of them. An image is named after its
content, so it has the same name everywhere. A worker where the build fails, or that joins later, gets none of these
sandboxes. It builds the image when no other worker has it any more and it is asked for again.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from ale_rock.admin.auth import Gate
from ale_rock.admin.record import BUILT
from ale_rock.admin.responses import answer, caller_of, plain_route
from ale_rock.admin.service import Service
from ale_rock.admin.workers import Worker, WorkerFailed, WorkerRefused
from ale_rock.http.disconnects import while_connected
from ale_rock.schemas import ALE_BASE, SERVICE_ERROR, BuildImage, ImageBuilt, RockError

AT_ONCE = 8
"""How many builds run at once; others wait. Each is in memory, with all of its files."""


def make_router(service: Service, gate: Gate) -> APIRouter:
    """Make the routes."""
    router = APIRouter(prefix=ALE_BASE, route_class=plain_route(gate, "admin", "user"), tags=["ALE"])
    choice, turns = service.fleet.choice, asyncio.Semaphore(AT_ONCE)

    @router.get("/builds")
    async def find(image: Annotated[str, Query(min_length=1, max_length=256)]) -> Response:
        """Say on how many workers an image is that was built."""
        return answer({"workers": len(choice.holders(image)) if image.startswith(BUILT) else 0})

    @router.post("/builds")
    async def build(request: Request, body: BuildImage) -> Response:
        """Build an image, unless it is there. A Dockerfile that fails is answered with the status 422 and the end of
        its output."""
        caller = caller_of(request)
        if caller.role != "admin" and (caller.user is not None or "full" not in (service.settings.networks or ())):
            raise RockError(
                "Only an admin may have images built, or a token without a user's name where the service's setting "
                "`networks` names 'full': what a Dockerfile runs reaches what its worker reaches, and it may name "
                "images that keep the files of others."
            )
        workers = [each for each in service.fleet.workers.values() if "builds" in (each.capabilities or ())]
        if not workers:
            raise RockError("No worker of this service builds images; start one with docker or podman.")
        async with turns:
            done = await while_connected(request, build_on(workers, body))
        images = [each for each in done if isinstance(each, str)]
        if images:
            return answer(ImageBuilt(image=images[0]))
        for each in done:
            if isinstance(each, WorkerRefused):
                return answer({"detail": str(each), "fault": "caller", "is_task": True}, 422)
        raise RockError(f"The image was built by no worker: {done[0]}", SERVICE_ERROR)

    async def build_on(workers: list[Worker], body: BuildImage) -> list[str | WorkerFailed]:
        sent = body.model_dump_json().encode()

        async def on(worker: Worker) -> str | WorkerFailed:
            try:
                image = await worker.build_image(sent, body.timeout_s)
            except WorkerFailed as error:
                return error
            if not worker.lost:
                choice.set_images(worker, worker.images | {image})
            return image

        return await asyncio.gather(*map(on, workers))

    return router
