"""The files of sandboxes that were stopped: snapshots on the disks of workers.

1. A stop keeps the files where a restart was asked for: by `auto_archive_seconds`, by `auto_delete_seconds` above 0
   (ROCK too leaves such a container where it is), or by the service's `keep_stopped`. Other stops cost nothing.
2. The snapshot is made before the sandbox is removed. It is named after the sandbox, so that the next stop replaces it.
   A worker that has it is the only one on which the sandbox can start again.
3. It is removed when the sandbox is deleted, or when another one takes its id. If no worker that has it is there, it is
   removed when that worker comes back. Snapshots that are left nevertheless are found when workers are asked
   for their snapshots.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging

from ale_rock.admin.fleet import Fleet
from ale_rock.admin.record import Record
from ale_rock.admin.settings import Settings
from ale_rock.admin.workers import Worker, WorkerFailed, WorkerRefused

log = logging.getLogger(__name__)


class KeptFiles:
    """Makes and removes the snapshots of stopped sandboxes."""

    def __init__(self, fleet: Fleet, settings: Settings) -> None:
        self._fleet, self._settings = fleet, settings
        self._under_way: dict[Record, asyncio.Task[str | None]] = {}

    def wanted(self, record: Record) -> bool:
        """Whether a stop of this sandbox keeps its files."""
        return self._settings.keep_stopped or record.archive_s is not None or bool(record.delete_s)

    def new_name(self, name: str) -> str:
        """Return a name for a snapshot of this service: machines may hold those of others too."""
        return f"rock-{self._fleet.store.service_id}-{name}"

    async def keep(self, record: Record) -> str | None:
        """Keep the files of a sandbox that runs; returns why that failed, or None. A call meanwhile waits for the
        same snapshot."""
        task = self._under_way.get(record)
        if task is None:
            task = self._under_way[record] = asyncio.create_task(self._keep(record))
            task.add_done_callback(lambda _: self._under_way.pop(record))
        return await asyncio.shield(task)

    async def _keep(self, record: Record) -> str | None:
        worker = self._fleet.workers.get(record.worker or "")
        if worker is None:
            return f"The worker {record.worker} is not there."
        name = hashlib.sha256(f"{record.id}\n{record.created!r}".encode()).hexdigest()[:32]
        try:
            taken = await worker.take_snapshot(record.id, self.new_name(name))
        except (WorkerRefused, WorkerFailed) as error:
            return str(error)
        self._fleet.choice.set_images(worker, worker.images | {taken})
        record.snapshot = taken
        await self._fleet.store.save(record)
        if record.state == "deleted":  # meanwhile
            await self.drop(record)
        return None

    async def drop(self, record: Record) -> None:
        """Remove the files of a sandbox that is deleted. Where that fails, its row says that they are still there."""
        if record.snapshot is not None and await self.remove(record.snapshot):
            record.snapshot = None
            if record.state == "deleted" and record.id not in self._fleet.live:  # its row is of a new sandbox else
                self._fleet.store.save(record)

    async def drop_deleted(self, worker: Worker) -> None:
        """Remove from a worker that came back what was deleted while it was away."""
        for record in await self._fleet.store.deleted_with_files():
            if record.snapshot in worker.images and record.id not in self._fleet.live:
                await self.drop(record)

    async def reconcile(self, worker: Worker) -> None:
        """Remove this service's snapshots that belong to nothing, such as those of a removal that failed; and only if
        that was so the last time too, since what is just made belongs to nothing yet. Raises `WorkerFailed`."""
        if self._fleet.store.error is not None:
            return  # what the database says is not what there is
        own = {name for name in await worker.snapshots() if self.new_name("") in name}
        strays = own - await self._fleet.store.used_snapshots(own) if own else set()
        if strays:
            known = (*self._fleet.live.values(), *self._fleet.ended.values())
            strays -= {record.snapshot for record in known if record.state != "deleted"}
        again, worker.strays = strays & worker.strays, strays
        if again:
            self._fleet.choice.set_images(worker, worker.images | again)
            await self.drop_deleted(worker)
        for name in again & worker.images:
            await worker.remove_snapshot(name)
            self._fleet.choice.set_images(worker, worker.images - {name})
            log.info("snapshot %s of worker %s belonged to nothing and is removed", name, worker.name)

    async def remove(self, snapshot: str) -> bool:
        """Remove a snapshot from a worker that has it; returns whether it is gone."""
        for worker in self._fleet.choice.holders(snapshot):
            try:
                await worker.remove_snapshot(snapshot)
            except WorkerFailed as error:
                log.warning("snapshot %s is not removed from worker %s yet: %s", snapshot, worker.name, error)
                continue
            self._fleet.choice.set_images(worker, worker.images - {snapshot})
            return True
        return False
