"""Images that are made of sandboxes by `/commit`, and that later starts name.

1. The image is a snapshot on the disk of the sandbox's worker. No registry is asked, so nothing is pushed and user name
   and password are not used. A start whose `image` is the tag starts from the snapshot, on a worker that has it.
2. A tag belongs to the user who made it; another user's start with the same name means the image of that name.
3. A commit has ROCK's phases. Its row is written before the worker is asked; one that ran when this service was killed
   is FAILED with `PROCESS_LOST`. A new commit to a tag replaces the image once it has succeeded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import asdict, dataclass
from typing import Literal
from uuid import uuid4

from sqlalchemy import Connection, delete, insert, select
from sqlalchemy.exc import SQLAlchemyError

from ale_rock.admin.record import Record, iso
from ale_rock.admin.sandbox_lookup import using
from ale_rock.admin.service import Service
from ale_rock.admin.tables import COMMITS
from ale_rock.admin.workers import Worker, WorkerFailed, WorkerRefused
from ale_rock.schemas import BAD_REQUEST, SERVICE_ERROR, Code, CommitResult, RockError

ANSWER_S = 20.0
"""A commit that takes longer is answered as RUNNING; the client then asks for its state."""
DATABASE = "The database of the service does not answer, so no image was made; commit again later."
FAULTS: dict[str, Code] = {"COMMIT_FAILED": BAD_REQUEST, "DATABASE_FAILED": SERVICE_ERROR}
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Commit:
    """One commit: it runs, has made an image, or has failed."""

    owner: str
    image_tag: str
    sandbox_id: str
    phase: Literal["RUNNING", "SUCCEEDED", "FAILED"] = "RUNNING"
    started: float = 0.0
    completed: float | None = None
    failed_stage: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    snapshot: str | None = None
    """The snapshot from which sandboxes start. It is that of the commit before until this one has succeeded."""

    def result(self) -> CommitResult:
        """Return the answer to `/commit`."""
        exit_code = {"RUNNING": None, "SUCCEEDED": 0, "FAILED": 1}[self.phase]
        return CommitResult(
            sandbox_id=self.sandbox_id,
            image_tag=self.image_tag,
            phase=self.phase,
            started_at=iso(self.started) or "",
            completed_at=iso(self.completed),
            exit_code=exit_code,
            failed_stage=self.failed_stage,
            error_code=self.error_code,
            error_message=self.error_message,
        )


class Commits:
    """The commits of a service."""

    def __init__(self, service: Service) -> None:
        self._service, self._store = service, service.fleet.store
        self._commits: dict[tuple[str, str], Commit] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """The commits that run, by the sandbox's id."""
        service.snapshot_of_image = self.snapshot_of

    async def start(self) -> None:
        """Read the commits in the database."""
        rows = await self._store.run(lambda connection: connection.execute(select(COMMITS)).mappings().all())
        for row in rows:
            commit = Commit(**row)
            self._commits[commit.owner, commit.image_tag] = commit
            if commit.phase == "RUNNING":
                await self._fail(commit, "PROCESS_LOST", "The service was restarted meanwhile; commit again.")

    async def close(self) -> None:
        """Cancel the commits that run; they are lost."""
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def snapshot_of(self, owner: str | None, image: str | None) -> str | None:
        """Return the snapshot that an image's name stands for, for a user."""
        commit = self._commits.get((owner or "", image or ""))
        return None if commit is None else commit.snapshot

    async def commit(self, record: Record, worker: Worker, owner: str | None, image_tag: str) -> Commit:
        """Make an image of a sandbox that runs; returns its state. Raises `RockError`."""
        if record.id in self._tasks:
            running = self.latest(record.id)
            if running.image_tag != image_tag:
                raise RockError(f"The sandbox {record.id} is being committed to {running.image_tag}; wait for its end.")
            return running
        key = owner or "", image_tag
        old = self._commits.get(key)
        if old is not None and old.phase == "RUNNING":
            raise RockError(f"The sandbox {old.sandbox_id} is being committed to {image_tag}; wait for its end.")
        snapshot = None if old is None else old.snapshot
        commit = self._commits[key] = Commit(*key, record.id, started=time.time(), snapshot=snapshot)
        task = self._tasks[record.id] = asyncio.create_task(self._run(commit, record, worker))
        task.add_done_callback(lambda _: self._tasks.pop(record.id))
        await asyncio.wait([task], timeout=ANSWER_S)
        if commit.error_code in FAULTS:
            raise RockError(commit.error_message or "", FAULTS[commit.error_code])
        return commit

    def latest(self, sandbox_id: str) -> Commit:
        """Return the latest commit of a sandbox. Raises `RockError` if there was none."""
        found = [commit for commit in self._commits.values() if commit.sandbox_id == sandbox_id]
        if not found:
            raise RockError(f"No commit of the sandbox {sandbox_id} was ever begun.")
        return max(found, key=lambda commit: commit.started)

    async def _run(self, commit: Commit, record: Record, worker: Worker) -> None:
        kept = self._service.kept
        try:
            await self._save(commit)
            with using(record):
                taken = await worker.take_snapshot(record.id, kept.new_name(f"image-{uuid4().hex}"))
        except WorkerRefused as error:
            await self._fail(commit, "COMMIT_FAILED", str(error))
            return
        except WorkerFailed as error:
            await self._fail(commit, "WORKER_UNREACHABLE", str(error))
            return
        except SQLAlchemyError:
            await self._fail(commit, "DATABASE_FAILED", DATABASE)
            return
        choice = self._service.fleet.choice
        choice.set_images(worker, worker.images | {taken})
        replaced, commit.snapshot = commit.snapshot, taken
        commit.phase, commit.completed = "SUCCEEDED", time.time()
        try:
            await self._save(commit)
        except SQLAlchemyError:  # its row still names the image before, which starts after a restart would use
            commit.snapshot = replaced
            await self._fail(commit, "DATABASE_FAILED", DATABASE)
            replaced = taken
        if replaced is not None:
            await kept.remove(replaced)

    async def _fail(self, commit: Commit, code: str, message: str) -> None:
        commit.phase, commit.completed = "FAILED", time.time()
        commit.failed_stage, commit.error_code, commit.error_message = "commit", code, message
        try:
            await self._save(commit)
        except SQLAlchemyError as error:  # a row that says RUNNING is one that has failed, after a restart
            log.error("the end of the commit of %s is not written: %s", commit.sandbox_id, type(error).__name__)

    async def _save(self, commit: Commit) -> None:
        row = asdict(commit)

        def write(connection: Connection) -> None:
            here = (COMMITS.c.owner == row["owner"]) & (COMMITS.c.image_tag == row["image_tag"])
            connection.execute(delete(COMMITS).where(here))
            connection.execute(insert(COMMITS).values(row))

        await self._store.run(write)
