"""Starts and stops of sandboxes: admission, the choice of a worker, the request to it, and what its failure means.

1. A start is admitted (quota, length of the queue), gets a record and waits in the queue. `_dispatch` runs whenever
   there may be room: for a new request at once, and whenever a start ends, a sandbox ends or a worker comes.
2. Before a worker is asked, the record with the worker's name is in the database. So whatever happens to this process,
   a sandbox that may live has a row.
3. A worker that fails is replaced by another. A sandbox that it may have started nevertheless is removed there.
4. A start goes on when its caller has left, since other callers may wait for the same id.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from aiohttp import ClientResponse

from ale_rock.admin.admission import Admission
from ale_rock.admin.auth import Caller
from ale_rock.admin.fleet import Fleet
from ale_rock.admin.kept_files import KeptFiles
from ale_rock.admin.queue import Queue
from ale_rock.admin.record import Need, Record
from ale_rock.admin.reservations import Reservations
from ale_rock.admin.settings import Settings
from ale_rock.admin.start_requests import StartHeaders, from_snapshot, make_record, request_for_worker
from ale_rock.admin.workers import Worker, WorkerFailed, WorkerRefused
from ale_rock.log_text import the_end, without_commands
from ale_rock.schemas import BAD_REQUEST, SERVICE_ERROR, Code, RockError, StartRequest, size_text

SAVED_S = 5.0
NOTHING = Need(0.0, 0, 0)
log = logging.getLogger(__name__)


class Service:
    """Starts, stops and finds the sandboxes of this service."""

    def __init__(self, settings: Settings, fleet: Fleet) -> None:
        self.settings, self.fleet = settings, fleet
        self.queue = Queue(settings.namespace_shares)
        self._stuck: list[Record] = []
        """The records that found no room when the queue was last dispatched."""
        self._reservations = Reservations(fleet.workers, settings.hold_s)
        self.kept = KeptFiles(fleet, settings)
        self.admission = Admission(settings, fleet, self.queue, self.kept)
        self.snapshot_of_image: Callable[[str | None, str | None], str | None] = lambda owner, image: None
        """Returns the snapshot that an image's name means for a user (set by `commits`)."""
        self.followed: set[ClientResponse] = set()
        """Answers of workers that stay open as long as a sandbox lives."""
        self._removing: dict[str, asyncio.Future[None]] = {}
        """Removals that are under way, by the sandbox's id; the worker answers with the sandbox's log."""
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task in the background; `close` cancels it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a background task failed", exc_info=error)

    def leave(self) -> None:
        """Close the answers that would hold up the end of the server."""
        for answer in list(self.followed):
            answer.close()

    async def close(self) -> None:
        """Cancel the background tasks."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- starting

    async def start(self, request: StartRequest, caller: Caller, headers: StartHeaders = StartHeaders()) -> Record:  # noqa: B008
        """Start a sandbox, or find the one of this id; returns once it runs, or after `answer_within_s` while it is
        still pending. Raises `RockError`."""
        asked = make_record(request, headers, caller, self.settings)
        ended: Record | None = None
        if asked.id not in self.fleet.live and asked.id in (request.sandbox_id, request.spec and request.spec.id):
            ended = self.fleet.ended.get(asked.id) or await self.fleet.store.find(asked.id)
        record = self.fleet.live.get(asked.id)
        if record is None:
            snapshot = self.snapshot_of_image(caller.acts_for, asked.image)
            record = self._admit(asked if snapshot is None else from_snapshot(asked, snapshot), ended, caller)
        elif record.fingerprint != asked.fingerprint or not caller.sees(record):
            raise RockError(f"A sandbox {asked.id} exists with another spec; stop it, or choose another sandbox_id.")
        await self.wait_settled(record, self.settings.answer_within_s)
        if not record.live:
            raise RockError(record.reason or f"The sandbox {record.id} was stopped.", _code(record))
        return record

    async def wait_settled(self, record: Record, limit_s: float) -> None:
        """Wait until a record is no longer pending, or unconfirmed after a restart; or until the time is over."""
        end = time.monotonic() + limit_s
        while record.settled is not None and (left_s := end - time.monotonic()) > 0:
            await asyncio.wait([record.settled], timeout=left_s)

    def _admit(self, record: Record, ended: Record | None, caller: Caller) -> Record:
        if ended is not None and not caller.sees(ended):
            raise RockError(f"The sandbox_id {record.id} is taken; choose another one.")
        self.admission.check(record)
        if ended is not None:
            self.fleet.revive(record, ended)
            self.spawn(self.kept.drop(ended))
        else:
            record.history.append(("", "pending", "start", record.created))
        self.fleet.add(record)
        self.fleet.note(record, "start")
        self._enqueue(record)
        return record

    def start_again(self, record: Record) -> None:
        """Start a sandbox that has ended, with the request in its record. Raises `RockError`."""
        self.admission.check(record)
        record.worker = record.host_name = record.host_ip = record.started = record.stopped = record.archived = None
        record.attempts, record.asked, record.revived = 0, time.time(), True
        record.refused_by.clear()
        self.fleet.move(record, "pending", "restart")
        self._enqueue(record)

    def _enqueue(self, record: Record) -> None:
        record.settled = asyncio.get_running_loop().create_future()
        record.start_by = time.time() + record.startup_s
        self.fleet.deadlines.schedule(record)
        if self.queue.push(record):
            self._dispatch(lambda waiting: self._place_anywhere(waiting) if waiting is record else False)
        if record.worker is None:
            self.fleet.store.save(record)

    def judge(self) -> None:
        """Refuse starts that were asked for while there was no worker, and that no worker now could run."""
        for record in self.admission.judge_waiting():
            self._fail(record, "start_refused", self.admission.unmet(record), BAD_REQUEST)

    # --- placing

    def _dispatch(self, place: Callable[[Record], bool]) -> None:
        if len(self.queue):
            self._stuck = self.queue.dispatch(place)

    def reserve(self) -> None:
        """Keep workers free for records that have waited too long."""
        self._reservations.renew(self._stuck, self.queue.waiting())

    def dispatch_on(self, worker: Worker | None) -> None:
        """Start waiting records that fit on this worker, which may have more room than before."""
        if worker is not None and not worker.lost and len(self.queue):
            self._dispatch(lambda record: self._place_on(record, worker))

    def _place_anywhere(self, record: Record) -> bool:
        choice, without = self.fleet.choice, record.refused_by | self._reservations.closed_to(record)
        if record.revived or record.attempts:
            without |= {each.name for each in self.fleet.workers.values() if record.id in each.sandboxes}
        if record.source is not None:
            worker = choice.choose_holder(record.need, record.source, without)
        else:
            worker = choice.choose(record.need, record.image, without)
        return worker is not None and self._place_on(record, worker)

    def _place_on(self, record: Record, worker: Worker) -> bool:
        if worker.name in record.refused_by or not worker.fits(record.need):
            return False
        if worker.name in self._reservations.closed_to(record):
            return False
        if record.source is not None and record.source not in worker.images:
            return False
        if record.id in worker.sandboxes:
            return False  # an earlier sandbox of this id is not removed yet
        self.fleet.place(record, worker)
        self._reservations.drop(record)
        record.ended_early = None
        worker.starting += 1
        record.attempts += 1
        self.spawn(self._start_on(record, worker))
        return True

    async def _start_on(self, record: Record, worker: Worker) -> None:
        problem: str | None = None
        try:
            await self.fleet.store.save(record)
            if record.state == "pending":
                left_s = (record.start_by or 0) - time.time()
                created = await worker.create(request_for_worker(record, worker), max(left_s, 0.1))
        except WorkerRefused as error:
            self._fail(record, "start_refused", str(error), BAD_REQUEST)
        except WorkerFailed as error:
            problem = str(error)
        finally:
            worker.starting -= 1
        if record.state == "pending" and record.worker == worker.name and problem is None:
            record.host_name, record.host_ip = created.host_name, created.host_ip
            record.disk = None if created.disk_mib is None else size_text(created.disk_mib)
            self.fleet.move(record, "running", "started")
            if record.ended_early is not None:
                self.lose(record, record.ended_early)
        elif problem is not None:
            self._retry(record, worker, problem)
            await self.remove_from(worker, record.id)  # it may have been started after all
        else:  # it was stopped meanwhile, or refused
            await self.remove_from(worker, record.id)
        self.dispatch_on(worker)

    def _retry(self, record: Record, worker: Worker, problem: str) -> None:
        if record.state != "pending" or record.worker != worker.name:
            return
        if not worker.lost:  # one that was lost may be asked again when it is back
            record.refused_by.add(worker.name)
        record.worker = None
        others = not self.fleet.workers or any(name not in record.refused_by for name in self.fleet.workers)
        if record.attempts >= self.settings.start_attempts or not others:
            tried = f" {record.attempts} workers were tried." if record.attempts > 1 else ""
            self._fail(record, "start_failed", f"{problem}{tried}", SERVICE_ERROR)
            return
        self.queue.push_first(record)
        self._dispatch(self._place_anywhere)

    def _fail(self, record: Record, event: str, reason: str, code: Code) -> None:
        if record.live:
            self.queue.remove(record)
            self.fleet.move(record, "stopped", event, reason, code)

    def expire(self, record: Record) -> None:
        """Fail a start that took too long."""
        waited_s = time.time() - record.asked
        if self.fleet.store.error is not None:
            where = self.fleet.store.error.rstrip(".")
        elif record.worker is not None:
            where = f"it was starting on the worker {record.worker}"
        elif not self.fleet.workers:
            where = "there is no worker; start one with `ale rock worker`"
        elif not self.fleet.choice.could_ever(record.need):
            where = self.admission.unmet(record).rstrip(".")
        else:
            where = (
                f"it was at place {self.queue.place_of(record)} of the {len(self.queue)} that wait for room on a worker"
            )
        self._fail(
            record, "start_timeout", f"The sandbox {record.id} was not ready in {waited_s:.0f} s: {where}.", 5000
        )

    # --- ending

    async def stop(self, record: Record, event: str = "stop", reason: str | None = None) -> None:
        """Stop a sandbox, wherever it is in its life, and keep its files if that was asked for. It is idempotent."""
        if record.state == "running" and self.kept.wanted(record):
            problem = await self.kept.keep(record)
            if problem is not None:
                reason = f"{reason or ''} Its files were not kept: {problem}".strip()
        await self.halt(record, event, reason)

    async def halt(self, record: Record, event: str = "stop", reason: str | None = None) -> None:
        """Stop a sandbox without keeping its files. It is idempotent."""
        if not record.live:
            return
        self.queue.remove(record)
        was_running = record.state == "running"
        saved = self.fleet.move(record, "stopped", event, reason)
        worker = self.fleet.workers.get(record.worker) if record.worker is not None else None
        if worker is not None and was_running:
            await self.remove_from(worker, record.id)
            self.dispatch_on(worker)
        await durable(saved)

    async def remove_from(self, worker: Worker, sandbox_id: str) -> None:
        """Remove a sandbox from a worker; if that fails, it is tried again when the worker is heard of. Until it is
        done, its room stays taken and no other sandbox of this id starts there."""
        worker.unremoved.discard(sandbox_id)
        ended = self._removing[sandbox_id] = asyncio.get_running_loop().create_future()
        try:
            log_text = await worker.delete(sandbox_id)
        except WorkerFailed as error:
            if not worker.unremoved:  # one line a worker; `ale rock status --json` counts them
                log.warning("sandbox %s is not removed from worker %s yet: %s", sandbox_id, worker.name, error)
            worker.unremoved.add(sandbox_id)
        else:
            worker.give_back(sandbox_id)
            self.keep_log(sandbox_id, log_text)
        finally:
            ended.set_result(None)
            if self._removing.get(sandbox_id) is ended:
                del self._removing[sandbox_id]

    async def wait_removed(self, sandbox_id: str) -> None:
        """Wait for a removal that is under way."""
        if (removing := self._removing.get(sandbox_id)) is not None:
            await asyncio.wait([removing])

    def keep_log(self, sandbox_id: str, text: str) -> None:
        """Save the log that a worker sent when a sandbox ended."""
        text = the_end(without_commands(text), self.settings.log_limit_bytes)
        if text and sandbox_id not in self.fleet.live:
            self.fleet.store.save_log(sandbox_id, text)

    def remove_unknown(self, worker: Worker, sandbox_id: str) -> None:
        """Remove a sandbox that a worker holds and this service does not know."""
        if sandbox_id not in worker.sandboxes:
            worker.take(sandbox_id, NOTHING)
            self.spawn(self.remove_from(worker, sandbox_id))

    async def delete(self, record: Record, event: str = "delete") -> None:
        """Forget a sandbox that is stopped or archived, and its files. It is idempotent. Raises `RockError` for one in
        another state."""
        record = self.fleet.get(record.id) or record
        if record.state == "deleted":
            return
        if record.state not in ("stopped", "archived"):
            mend = " Stop it first." if record.live else ""
            raise RockError(
                f"The sandbox {record.id} is {record.state}; only one that is stopped or archived is deleted.{mend}"
            )
        await durable(self.fleet.move(record, "deleted", event, record.reason))
        await self.kept.drop(record)

    def lose(self, record: Record, reason: str) -> None:
        """Note that a sandbox has ended without being stopped."""
        if record.live:
            self.queue.remove(record)
            self.fleet.move(record, "stopped", "lost", reason, SERVICE_ERROR)
            self.dispatch_on(self.fleet.leave(record))


async def durable(saved: asyncio.Future[None]) -> None:
    """Wait until a change is in the database, or `SAVED_S` if the database does not answer."""
    await asyncio.wait([saved], timeout=SAVED_S)


def _code(record: Record) -> Code:
    return BAD_REQUEST if record.code == BAD_REQUEST else SERVICE_ERROR
