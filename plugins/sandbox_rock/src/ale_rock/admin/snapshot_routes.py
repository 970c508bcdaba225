"""ALE's own routes for snapshots: a provider's sandboxes start from them, on the worker that has their files.

1. A snapshot belongs to the user whose token made it: no other user lists it, removes it or starts from it.
2. A name means one snapshot on all workers: a new one replaces an older one, also on another worker.
3. A snapshot may exist although its caller has hung up. `DELETE .../sandboxes/{id}/snapshot` removes it, once the
   worker has finished.
"""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from ale_rock.admin.auth import Gate
from ale_rock.admin.responses import answer, caller_of, plain_route
from ale_rock.admin.sandbox_lookup import find_running, using
from ale_rock.admin.service import Service
from ale_rock.admin.snapshot_names import NAME, is_owned, name_for
from ale_rock.admin.workers import Worker, WorkerFailed, WorkerRefused
from ale_rock.http.disconnects import while_connected
from ale_rock.schemas import ALE_BASE, BAD_REQUEST, SERVICE_ERROR, HeldSnapshots, RockError, SnapshotTaken, TakeSnapshot

SnapshotName = Annotated[str, Query(min_length=1, max_length=256)]


def make_router(service: Service, gate: Gate) -> APIRouter:
    """Make the routes."""
    router = APIRouter(prefix=ALE_BASE, route_class=plain_route(gate, "admin", "user"), tags=["ALE"])
    choice = service.fleet.choice

    @router.post("/sandboxes/{sandbox_id}/snapshot")
    async def take(request: Request, sandbox_id: str, body: TakeSnapshot) -> Response:
        """Keep the files of a sandbox: `Snapshots.snapshot`; returns the name from which others start."""
        caller = caller_of(request)
        if not NAME.fullmatch(body.name):
            raise RockError(f"A snapshot cannot be named {body.name!r}; use up to 47 letters, digits, '-' and '_'.")
        record, worker = await find_running(service, sandbox_id, caller)
        making = worker.take_snapshot(record.id, name_for(caller.acts_for, body.name))
        try:
            with using(record):
                taken = await while_connected(request, making)
        except WorkerRefused as error:
            raise RockError(str(error), BAD_REQUEST) from None
        except WorkerFailed as error:
            raise RockError(str(error), SERVICE_ERROR) from None
        if worker.lost:
            raise RockError(f"The worker {worker.name} was lost when it had made the snapshot.", SERVICE_ERROR)
        worker.new_snapshots[taken] = time.monotonic()
        choice.set_images(worker, worker.images | {taken})
        for other in choice.holders(taken):
            if other is not worker:
                await remove(other, taken)
        return answer(SnapshotTaken(name=taken))

    @router.delete("/sandboxes/{sandbox_id}/snapshot")
    async def remove_taken(request: Request, sandbox_id: str, name: SnapshotName) -> Response:
        """Remove a snapshot by the name for which it was asked; one that is being made is waited for."""
        caller = caller_of(request)
        _, worker = await find_running(service, sandbox_id, caller)
        full_name = name_for(caller.acts_for, name)
        await remove(worker, full_name)
        for each in [each for each in worker.images if each.rpartition(":")[2] == full_name]:
            forget(worker, each)
        return answer({})

    @router.get("/snapshots")
    async def list_snapshots(request: Request) -> Response:
        """List the caller's snapshots on workers that are there: `KeepsSnapshots.snapshots`."""
        owner = caller_of(request).acts_for
        return answer(HeldSnapshots(snapshots=sorted(name for name in choice.images() if is_owned(owner, name))))

    @router.delete("/snapshots")
    async def remove_snapshot(request: Request, name: SnapshotName) -> Response:
        """Remove a snapshot: `KeepsSnapshots.remove_snapshot`. It is idempotent."""
        if is_owned(caller_of(request).acts_for, name):
            for worker in choice.holders(name):
                await remove(worker, name)
        return answer({})

    async def remove(worker: Worker, name: str) -> None:
        try:
            await worker.remove_snapshot(name)
        except WorkerFailed as error:
            raise RockError(str(error), SERVICE_ERROR) from None
        forget(worker, name)

    def forget(worker: Worker, name: str) -> None:
        worker.new_snapshots.pop(name, None)
        choice.set_images(worker, worker.images - {name})

    return router
