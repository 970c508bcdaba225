"""One sandbox as the admin knows it: what was asked for, where it is, its state and its history.

The state is changed by `Fleet.move` alone. What must outlive the admin is in `row()`, which `from_row()` reads.
Neither the environment's values, nor files, nor passwords are in it: they go to the worker and are then forgotten.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ale_rock.schemas import LIVE, CreateSandbox, Phase, StartResult, State, StateChange, StatusResult

HISTORY = 50
"""Entries of the history that are kept."""
RECOVERED = "The admin was restarted and its worker has not come back yet."


def iso(at: float | None) -> str | None:
    """Return a time as ROCK writes it."""
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat()


@dataclass(frozen=True, slots=True)
class Need:
    """What a sandbox takes from a worker."""

    cpus: float
    memory_bytes: int
    disk_bytes: int
    gpus: int = 0
    abilities: frozenset[str] = field(default=frozenset(), repr=False)
    """What the worker must be able to do (`admission`). Two equal requests may differ in it."""


@dataclass(slots=True, eq=False)
class Record:
    """One sandbox. Times are seconds since 1970."""

    id: str
    fingerprint: str
    need: Need
    image: str | None = None
    memory: str | None = None
    disk: str | None = None
    """The limit of its disk that its worker enforces; None if there is none."""
    user: str | None = None
    experiment: str | None = None
    namespace: str | None = None
    priority: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    idle_s: float | None = None
    delete_s: float | None = None
    archive_s: float | None = None
    lifetime_s: float | None = None
    state: State = "pending"
    worker: str | None = None
    host_name: str | None = None
    host_ip: str | None = None
    reason: str | None = None
    code: int | None = None
    """Whose fault the reason is, if it is an error."""
    created: float = field(default_factory=time.time)
    started: float | None = None
    stopped: float | None = None
    archived: float | None = None
    deleted: float | None = None
    snapshot: str | None = None
    """The name of the snapshot with the files of its last stop, at its worker."""
    kept_order: str | None = None
    """The request for a restart, in JSON: the spec without values of the environment, and without files."""
    history: list[tuple[str, str, str, float]] = field(default_factory=list)

    # What follows lives in memory only.
    create_request: CreateSandbox | None = None
    """The request to the worker; None once the sandbox runs."""
    for_rock: bool = True
    """Whether ROCK's request was translated; else the request holds a spec of ALE's own."""
    env: dict[str, str] | None = None
    """Its environment, for a restart; None after a restart of this service."""
    startup_s: float = 0.0
    """Seconds that a start may take."""
    asked: float = field(default_factory=time.time)
    """When its latest start was asked for."""
    start_by: float | None = None
    """The time at which a start that has not ended fails."""
    used: float = field(default_factory=time.time)
    busy: int = 0
    """Requests that run now."""
    requests: int = 0
    settled: asyncio.Future[None] | None = None
    """Done when it is no longer pending; after a restart of the admin, when its worker is back or is given up."""
    unconfirmed: bool = False
    ended_early: str | None = None
    """Why it ended, if the worker says so before it says that it started."""
    attempts: int = 0
    ticket: int = 0
    """Its number in the queue."""
    refused_by: set[str] = field(default_factory=set)
    """Workers that could not start it."""
    unjudged: bool = False
    """Whether no worker was there when it was asked for, so that admission has still to be checked."""
    revived: bool = False
    """Whether a sandbox of this id was there before, which its worker may not have removed yet."""
    bucket: int | None = None
    """Where `Deadlines` has it."""

    @property
    def live(self) -> bool:
        """Whether it waits, starts or runs."""
        return self.state in LIVE

    @property
    def alive(self) -> bool:
        """Whether commands can run in it, as far as is known."""
        return self.state == "running" and not self.unconfirmed

    def due(self) -> float | None:
        """Return when it is next stopped, archived or deleted by itself, or its start fails."""
        if self.state == "pending":
            return self.start_by
        if self.state == "running":
            since = time.time() if self.busy else self.used
            idle = None if self.idle_s is None else since + self.idle_s
            end = None if self.lifetime_s is None or self.started is None else self.started + self.lifetime_s
            return min((at for at in (idle, end) if at is not None), default=None)
        if self.state == "stopped" and self.stopped is not None:
            if self.archive_s is not None and self.snapshot is not None:
                return self.stopped + self.archive_s
            return None if self.delete_s is None else self.stopped + self.delete_s
        return None

    @property
    def is_to_be_archived(self) -> bool:
        """Whether it is due to be archived, and not to be deleted."""
        return self.state == "stopped" and self.archive_s is not None and self.snapshot is not None

    @property
    def source(self) -> str | None:
        """The snapshot, or the image built for a task, from which it starts; only some workers have it."""
        if self.create_request is None:
            return None
        spec = self.create_request.spec
        return spec.from_snapshot or (spec.image if (spec.image or "").startswith(BUILT) else None)

    @property
    def shape(self) -> Hashable:
        """A key that two waiting records share if either both find room or neither does."""
        own = self.id if self.revived or self.attempts else None
        return self.need, self.source, own

    def start_result(self) -> StartResult:
        """Return the answer to a start."""
        return StartResult(
            sandbox_id=self.id,
            host_name=self.host_name,
            host_ip=self.host_ip,
            cpus=self.need.cpus,
            memory=self.memory,
            disk=self.disk,
        )

    def _phases(self) -> dict[Any, Phase]:
        if self.started is not None:
            return {"image_pull": Phase(status="success"), "docker_run": Phase(status="success")}
        if self.state == "pending":
            waits = self.worker is None
            pull = Phase(status="waiting", message="It waits in the queue.") if waits else Phase(status="running")
            return {"image_pull": pull, "docker_run": Phase(status="waiting")}
        return {
            "image_pull": Phase(status="waiting"),
            "docker_run": Phase(status="failed", message=self.reason or "It was stopped before it ran."),
        }

    def status(self) -> StatusResult:
        """Return the answer to `/get_status`."""
        stops = deletes = archives = None
        if self.state == "running":
            stops = self.due()
        elif self.is_to_be_archived:
            archives = self.due()
        elif self.state == "stopped":
            deletes = self.due()
        return StatusResult(
            sandbox_id=self.id,
            state=self.state,
            is_alive=self.alive,
            status=self._phases(),
            message=RECOVERED if self.unconfirmed else self.reason,
            host_name=self.host_name,
            host_ip=self.host_ip,
            image=self.image,
            cpus=self.need.cpus,
            memory=self.memory,
            disk=self.disk,
            num_gpus=self.need.gpus or None,
            user_id=self.user,
            experiment_id=self.experiment,
            namespace=self.namespace,
            create_time=iso(self.created),
            start_time=iso(self.started),
            stop_time=iso(self.stopped),
            archive_time=iso(self.archived),
            delete_time=iso(self.deleted),
            auto_stop_time=iso(stops),
            auto_archive_time=iso(archives),
            auto_delete_time=iso(deletes),
            state_history=[
                StateChange(from_state=old, to_state=new, event=event, timestamp=iso(at) or "")
                for old, new, event, at in self.history
            ],
        )

    def row(self) -> dict[str, Any]:
        """Return what the database keeps."""
        row = {name: _without_nul(getattr(self, name)) for name in _PLAIN}
        row["need"] = json.dumps([self.need.cpus, self.need.memory_bytes, self.need.disk_bytes, self.need.gpus])
        row["labels"], row["history"] = json.dumps(self.labels), json.dumps(self.history)
        return row


_PLAIN = (
    *("id", "fingerprint", "image", "memory", "disk", "user", "experiment", "namespace", "priority"),
    *("idle_s", "delete_s", "archive_s", "lifetime_s", "state", "worker", "host_name", "host_ip", "reason", "code"),
    *("created", "started", "stopped", "archived", "deleted", "snapshot", "kept_order"),
)

BUILT = "ale-build:"
"""The prefix of images that workers build (`ale_sandbox.containers.image_builds`); no registry has them."""


def _without_nul(value: Any) -> Any:
    """Return a text without NUL, which databases refuse: one row must not hold up the others."""
    return value.replace("\0", "") if isinstance(value, str) else value


def from_row(row: dict[str, Any]) -> Record:
    """Return the record of a row."""
    record = Record(need=Need(*json.loads(row["need"])), **{name: row[name] for name in _PLAIN})
    record.labels, record.asked = json.loads(row["labels"]), record.created
    record.history = [(old, new, event, at) for old, new, event, at in json.loads(row["history"])]
    return record
