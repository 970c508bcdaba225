"""What the admin does by itself: it notices lost workers, what is due, and sandboxes on workers that it does not know.

After a restart the sandboxes in the database are *unconfirmed* until their worker registers again and names them; a
request for one waits that long. A worker that does not come back within `worker_timeout_s` has lost its sandboxes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress

from sqlalchemy.exc import SQLAlchemyError

from ale_rock.admin.persistence import archive_when_due
from ale_rock.admin.record import Record
from ale_rock.admin.service import Service
from ale_rock.admin.workers import Worker, WorkerFailed
from ale_rock.schemas import Heartbeat, HeartbeatAnswer, Register, Registered, RockError

TICK_S = 0.25
STARTING_POLL_S = 0.25
FORGET_EVERY_S = 600.0
NEW_S = 10.0
HEARTBEATS = 3
"""Heartbeats in the time after which a silent worker is lost."""
log = logging.getLogger(__name__)


class Watch:
    """Registers workers, reads their heartbeats, and stops, archives and deletes sandboxes when that is due."""

    def __init__(self, service: Service) -> None:
        self.service, self.fleet, self.settings = service, service.fleet, service.settings
        self.heartbeat_s = self.settings.worker_timeout_s / HEARTBEATS
        self._unconfirmed: dict[str, list[Record]] = {}
        """Unconfirmed sandboxes by their worker's name."""
        self._confirm_by = 0.0
        self._forgotten = 0.0
        self._ticked = time.monotonic()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the sandboxes in the database, and begin."""
        live, stopped = await self.fleet.store.start()
        for record in stopped:
            self.fleet.add(record)
        for record in live:
            record.unconfirmed = True
            record.settled = asyncio.get_running_loop().create_future()
            self.fleet.add(record)
            if record.worker is None:
                self.service.lose(
                    record, "The admin was restarted while this sandbox waited in the queue; start it again."
                )
            else:
                self._unconfirmed.setdefault(record.worker, []).append(record)
        self._confirm_by = time.monotonic() + self.settings.worker_timeout_s
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """End; sandboxes and workers go on."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.service.close()
        await asyncio.gather(*(worker.close() for worker in self.fleet.workers.values()))
        await self.fleet.store.close()

    # --- what workers report

    async def register(self, register: Register) -> Registered:
        """Register a worker: a new one, or one that came back."""
        try:
            worker = Worker(register, self.settings)
        except ValueError as error:
            raise RockError(f"The worker's URL cannot be used: {error}.") from None
        old = await self._predecessor(worker)
        here = set(register.sandboxes)
        records = self._unconfirmed.pop(register.name, [])
        if old is not None:
            records += [self.fleet.live[each] for each in old.sandboxes if self._runs_on(each, old)]
            self.fleet.drop_worker(old)
        self.fleet.add_worker(worker)
        for record in records:
            if not record.live or record.worker != worker.name:
                continue
            if record.id not in here:
                self.service.lose(record, f"The worker {worker.name} was restarted and no longer has this sandbox.")
            else:
                self._take_over(record, worker)
        for sandbox_id in here - worker.sandboxes.keys():
            self.service.remove_unknown(worker, sandbox_id)
        self.fleet.note_worker(worker.name, "worker registered" if old is None else "worker registered again")
        log.info("worker %s registered: %d sandboxes, %d unknown", worker.name, len(here), len(here) - len(records))
        for record in self.service.queue.waiting():
            record.refused_by.discard(worker.name)  # a start that failed on it before may succeed now
        self.service.judge()
        self.service.dispatch_on(worker)
        self.service.spawn(self.service.kept.drop_deleted(worker))
        if old is not None:
            await old.close()  # starts that wait for it go to others, or here again under its new address
        return Registered(worker_id=worker.id, heartbeat_s=self.heartbeat_s)

    async def _predecessor(self, worker: Worker) -> Worker | None:
        """Return the known worker of this name if it is the same one, or one that has ended. Raises `RockError` if
        another lives: two of one name would end each other's sandboxes."""
        while (old := self.fleet.workers.get(worker.name)) is not None and old.url != worker.url:
            try:
                await old.held()
            except WorkerFailed:
                if old is self.fleet.workers.get(worker.name):
                    return old
            else:
                raise RockError(
                    f"A worker {worker.name} runs already, at {old.url}; start this one with another name (--name)."
                )
        return old

    def _take_over(self, record: Record, worker: Worker) -> None:
        """Keep a sandbox that a worker had before it registered again."""
        self.fleet.place(record, worker)
        if record.state == "running":
            record.unconfirmed = False
            record.used = time.time()
            self.fleet.deadlines.schedule(record)
            self.fleet.settle(record)
        else:
            self.service.spawn(self._follow_start(record, worker))

    async def _follow_start(self, record: Record, worker: Worker) -> None:
        """Wait for the end of a start that the admin had asked for when it was killed. The sandbox may run already, if
        the admin was killed before it wrote that."""
        record.start_by = time.time() + self.settings.startup_timeout_s
        self.fleet.deadlines.schedule(record)
        while record.state == "pending" and not worker.lost:
            with suppress(WorkerFailed):
                alive = {held.id: held.alive for held in (await worker.held()).sandboxes}.get(record.id)
                if record.state != "pending":
                    break
                if alive:
                    record.host_name, record.host_ip, record.unconfirmed = worker.name, worker.host_ip, False
                    self.fleet.move(record, "running", "found_again")
                    return
                if record.id not in worker.sandboxes or alive is False:
                    break
                if record.unconfirmed:  # it is still starting: requests for its state wait no longer
                    record.unconfirmed = False
                    self.fleet.settle(record)
                    record.settled = asyncio.get_running_loop().create_future()
            await asyncio.sleep(STARTING_POLL_S)
        self.service.lose(record, "Its start failed while the admin was restarted; start it again.")
        await self.service.remove_from(worker, record.id)

    def heartbeat(self, beat: Heartbeat) -> HeartbeatAnswer:
        """Take in a heartbeat: the worker lives, and reports what has changed."""
        worker = self.fleet.by_id.get(beat.worker_id)
        if worker is None:
            return HeartbeatAnswer(known=False)
        worker.seen = time.monotonic()
        if beat.memory_used_bytes is not None:
            worker.memory_used = beat.memory_used_bytes
        if beat.disk_free_bytes is not None and (said := worker.note_disk(beat.disk_free_bytes)) is not None:
            self.fleet.note_worker(worker.name, "disk full" if worker.disk_is_full else "disk no longer full", said)
            log.warning("worker %s: %s", worker.name, said)
        if beat.cpu_load is not None:
            worker.cpu_load = beat.cpu_load
        worker.warm = beat.warm
        if beat.images is not None:
            self.fleet.choice.set_images(worker, set(beat.images) | new_snapshots(worker))
        for ended in beat.ended:
            record = self.fleet.live.get(ended.id)
            if record is None or record.worker != worker.name:
                continue
            reason = ended.reason or f"It ended by itself on the worker {worker.name}."
            if record.state == "running":
                self.service.lose(record, reason)
            else:
                record.ended_early = reason
            self.service.keep_log(ended.id, ended.log)
        for sandbox_id in list(worker.unremoved):
            worker.unremoved.discard(sandbox_id)
            self.service.spawn(self.service.remove_from(worker, sandbox_id))
        self.service.dispatch_on(worker)
        return HeartbeatAnswer(known=True)

    # --- what happens by itself

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self._tick()
            except Exception:
                log.exception("a tick failed")

    async def _tick(self) -> None:
        now = time.monotonic()
        if now - self._ticked > self.settings.worker_timeout_s / 2:
            # This process was held up, so heartbeats may wait to be read; no worker is lost because of that.
            late = now - self._ticked
            self._confirm_by += late
            for worker in self.fleet.workers.values():
                worker.seen = min(now, worker.seen + late)
        self._ticked = now
        silent = now - self.settings.worker_timeout_s
        for worker in [worker for worker in self.fleet.workers.values() if worker.seen < silent]:
            await self.lose_worker(worker)
        if self._unconfirmed and now > self._confirm_by:
            missing, self._unconfirmed = self._unconfirmed, {}
            for name, records in missing.items():
                for record in records:
                    self.service.lose(record, f"The worker {name} did not come back after the admin was restarted.")
        for record in self.fleet.deadlines.take_due(time.time()):
            self.service.spawn(self._end(record))
        self.service.reserve()
        for worker in list(self.fleet.workers.values()):
            if now - worker.reconciled > self.settings.reconcile_s:
                worker.reconciled = now
                self.service.spawn(self._reconcile(worker))
        if now - self._forgotten > FORGET_EVERY_S:
            self._forgotten = now
            self.service.spawn(self._forget(time.time() - self.settings.forget_after_s))

    async def _forget(self, before: float) -> None:
        """Delete the rows of sandboxes that ended before a time; archived sandboxes stay."""
        try:
            for record in await self.fleet.store.stopped_with_files(before):
                record = self.fleet.get(record.id) or record
                if record.state == "stopped":
                    await self.service.delete(record, "auto_delete")
            await self.fleet.store.forget(before)
        except SQLAlchemyError as error:
            log.warning("what ended long ago is not forgotten yet: %s", type(error).__name__)

    async def lose_worker(self, worker: Worker) -> None:
        """Drop a worker that is silent: its sandboxes are lost, and every request to it ends."""
        log.warning("worker %s is lost with %d sandboxes", worker.name, len(worker.sandboxes))
        worker.lost = True
        self.fleet.drop_worker(worker)
        reason = f"The worker {worker.name} is lost: it was silent for {self.settings.worker_timeout_s:g} s."
        self.fleet.note_worker(worker.name, "worker lost", reason)
        for sandbox_id in list(worker.sandboxes):
            record = self.fleet.live.get(sandbox_id)
            if record is not None and record.worker == worker.name and record.state == "running":
                self.service.lose(record, reason)
        await worker.close()  # starts that wait for it now fail and go to others

    async def _end(self, record: Record) -> None:
        if record.state == "pending":
            self.service.expire(record)
        elif record.state == "running":
            old = record.lifetime_s is not None and time.time() >= (record.started or 0) + record.lifetime_s
            event = "lifetime" if old else "idle"
            why = f"It lived for {record.lifetime_s:g} s." if old else f"It had no request for {record.idle_s:g} s."
            await self.service.stop(record, event, why)
        elif record.state == "stopped" and self.fleet.get(record.id) in (None, record):
            if record.is_to_be_archived:
                await archive_when_due(self.service, record)
            else:
                await self.service.delete(record, "auto_delete")

    async def _reconcile(self, worker: Worker) -> None:
        """Remove sandboxes on a worker that are not known here, and note those that it no longer has."""
        before = {each for each in worker.sandboxes if self._runs_on(each, worker)}
        try:
            held = {each.id: each.alive for each in (await worker.held()).sandboxes}
        except WorkerFailed:
            return
        for sandbox_id, alive in held.items():
            if alive:
                self.service.remove_unknown(worker, sandbox_id)
        for sandbox_id in before:
            if not held.get(sandbox_id) and self._runs_on(sandbox_id, worker):
                self.service.lose(self.fleet.live[sandbox_id], f"The worker {worker.name} no longer has this sandbox.")
        try:
            await self.service.kept.reconcile(worker)
        except (WorkerFailed, SQLAlchemyError) as error:
            log.warning("the snapshots of worker %s are not compared yet: %s", worker.name, type(error).__name__)

    def _runs_on(self, sandbox_id: str, worker: Worker) -> bool:
        record = self.fleet.live.get(sandbox_id)
        return record is not None and record.state == "running" and record.worker == worker.name


def new_snapshots(worker: Worker) -> set[str]:
    """Return the snapshots that a worker has made just now."""
    since = time.monotonic() - NEW_S
    worker.new_snapshots = {name: at for name, at in worker.new_snapshots.items() if at > since}
    return set(worker.new_snapshots)
