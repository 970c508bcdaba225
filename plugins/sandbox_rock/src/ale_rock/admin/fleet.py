"""All sandboxes and workers in memory, with the indexes that requests need, and the one function that changes a state.

Each change of state is noted in the sandbox's history and saved. Sandboxes that ended stay in memory up to a number,
and those that ended first are dropped first.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass

from ale_rock.admin.deadlines import Deadlines
from ale_rock.admin.record import HISTORY, Record
from ale_rock.admin.store import Store
from ale_rock.admin.worker_choice import WorkerChoice
from ale_rock.admin.workers import Worker
from ale_rock.schemas import LIVE, Code, State

log = logging.getLogger(__name__)
RECENT = 500

ALLOWED: dict[State, frozenset[State]] = {
    "pending": frozenset({"running", "stopped"}),
    "running": frozenset({"stopped"}),
    "stopped": frozenset({"pending", "archiving", "deleted"}),
    "deleted": frozenset({"pending"}),
    "archiving": frozenset({"archived", "stopped"}),
    "archived": frozenset({"pending", "deleted"}),
}


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a sandbox or a worker. `at` is seconds since 1970."""

    at: float
    event: str
    sandbox: str | None = None
    user: str | None = None
    """The user to whom the sandbox belongs."""
    worker: str | None = None
    reason: str | None = None


class Fleet:
    """The sandboxes and workers of a service."""

    def __init__(self, store: Store, keep_ended: int) -> None:
        self.store = store
        self.live: dict[str, Record] = {}
        self.ended: OrderedDict[str, Record] = OrderedDict()
        self.workers: dict[str, Worker] = {}
        """Workers by name."""
        self.by_id: dict[str, Worker] = {}
        self.choice = WorkerChoice()
        self.deadlines = Deadlines()
        self.per_user: Counter[str] = Counter()
        """Live sandboxes of each user."""
        self.counts: Counter[State] = Counter()
        """Live sandboxes by state."""
        self.events: Counter[str] = Counter()
        """How often each event has happened since the start, for statistics."""
        self.recent: deque[Event] = deque(maxlen=RECENT)
        """The latest events, the oldest first."""
        self._keep_ended = keep_ended

    def get(self, sandbox_id: str) -> Record | None:
        """Return a sandbox that is in memory."""
        return self.live.get(sandbox_id) or self.ended.get(sandbox_id)

    def add(self, record: Record) -> None:
        """Add a record: a new one, or one from the database."""
        if record.live:
            self.live[record.id] = record
            self.per_user[record.user or ""] += 1
            self.counts[record.state] += 1
        else:
            self._remember(record)
        self.deadlines.schedule(record)

    def _remember(self, record: Record) -> None:
        self.ended[record.id] = record
        while len(self.ended) > self._keep_ended:
            self.ended.popitem(last=False)

    def move(
        self, record: Record, state: State, event: str, reason: str | None = None, code: Code | None = None
    ) -> asyncio.Future[None]:
        """Change the state; the result is done when the change is in the database. Raises `ValueError` if the states do
        not follow each other."""
        old = record.state
        if state not in ALLOWED[old]:
            raise ValueError(f"The sandbox {record.id} cannot go from {old} to {state}.")
        was_live, now = record.live, time.time()
        record.state, record.reason, record.code = state, reason, code
        record.history.append((old, state, event, now))
        del record.history[:-HISTORY]
        for each, sign in ((old, -1), (state, 1)):
            if each in LIVE:
                self.counts[each] += sign
        self.note(record, event)
        if state == "running":
            record.started, record.used, record.create_request = now, now, None
        elif state == "stopped":
            record.stopped, record.create_request, record.unconfirmed = now, None, False
        elif state == "archived":
            record.archived = now
        elif state == "deleted":
            record.deleted = now
        if was_live and not record.live:
            del self.live[record.id]
            self.per_user[record.user or ""] -= 1
            if not self.per_user[record.user or ""]:
                del self.per_user[record.user or ""]
            self._remember(record)
        elif record.live and not was_live:  # a restart
            self.ended.pop(record.id, None)
            self.live[record.id] = record
            self.per_user[record.user or ""] += 1
        if state != "pending":
            self.settle(record)
        self.deadlines.schedule(record)
        log.debug("sandbox %s %s -> %s (%s)", record.id, old, state, event)
        return self.store.save(record)

    def note(self, record: Record, event: str) -> None:
        """Remember what happened to a sandbox."""
        self.events[event] += 1
        self.recent.append(Event(time.time(), event, record.id, record.user, record.worker, record.reason))

    def note_worker(self, name: str, event: str, reason: str | None = None) -> None:
        """Remember what happened to a worker."""
        self.recent.append(Event(time.time(), event, worker=name, reason=reason))

    def settle(self, record: Record) -> None:
        """Wake the callers that wait until a record is no longer pending."""
        settled, record.settled = record.settled, None
        if settled is not None and not settled.done():
            settled.set_result(None)

    def revive(self, record: Record, old: Record) -> None:
        """Give a new start the id of a sandbox that ended; the history goes on."""
        self.ended.pop(old.id, None)
        old.delete_s = old.archive_s = None
        self.deadlines.schedule(old)
        record.revived = True
        record.history = [*old.history, (old.state, "pending", "start", record.created)][-HISTORY:]

    # --- room on workers

    def place(self, record: Record, worker: Worker) -> None:
        """Reserve room for a record on a worker."""
        record.worker = worker.name
        worker.take(record.id, record.need)

    def leave(self, record: Record) -> Worker | None:
        """Free the room of a record; returns the worker that has room now."""
        worker = self.workers.get(record.worker) if record.worker is not None else None
        if worker is not None:
            worker.give_back(record.id)
        return worker

    def add_worker(self, worker: Worker) -> None:
        """Add a worker."""
        self.workers[worker.name] = self.by_id[worker.id] = worker
        self.choice.add(worker)

    def drop_worker(self, worker: Worker) -> None:
        """Remove a worker."""
        if self.workers.get(worker.name) is worker:
            del self.workers[worker.name]
        self.by_id.pop(worker.id, None)
        self.choice.discard(worker)
