"""The run folder: one SQLite file (WAL) with every trajectory, metric and event, and checkpoints beside it.

    run.db          trajectories (see `encoding`), which of them were trained on, metrics, events, meta
    config.yaml     the resolved configuration
    summary.json    written at the end, however the run ended
    model/          the policies: `initial`, `cpt`, `sft`, `final` (Hugging Face folders)
    checkpoints/    what the trainer and the loop go on from

Each trajectory is committed as it finishes, so that `kill -9` loses no finished rollout; readers (`ale report`) may
open the file while a run writes it. One thread of the store writes, in the order of the calls. Writers hold the
folder's lock, which the kernel releases when a process ends.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ale.config.references import redact_json
from ale.errors import ConfigError
from ale.store.encoding import decode, encode
from ale.store.output_files import make_folder
from ale.trajectory import Trajectory

DB_NAME, SUMMARY_NAME, CONFIG_NAME = "run.db", "summary.json", "config.yaml"
SCHEMA_VERSION = 3
OWN_WORDS = frozenset(
    {"id", "task_id", "group", "stage", "split", "role", "kind", "finish_reason", "ended_by", "status"}
)
"""Keys whose texts are ALE's own words: one that equals a secret does so by chance, and is not redacted."""
REJECT = (
    "WITH given (reason) AS (SELECT ?) UPDATE trajectories SET rejected = (SELECT reason FROM given), "
    "data = json_set(data, '$.rejected', (SELECT reason FROM given)) WHERE id = ?"
)
"""It marks stored rollouts as rejected: reason, id."""
_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE trajectories (
  id TEXT PRIMARY KEY, stage TEXT NOT NULL, step INTEGER NOT NULL, split TEXT NOT NULL, task_id TEXT NOT NULL,
  grp TEXT NOT NULL, policy_version INTEGER NOT NULL, reward REAL, passed INTEGER NOT NULL, rejected TEXT,
  failure TEXT, chunks INTEGER NOT NULL, sampled_tokens INTEGER NOT NULL, seconds REAL NOT NULL,
  finished_at REAL NOT NULL, data TEXT NOT NULL, arrays BLOB NOT NULL);
CREATE INDEX trajectories_by_stage ON trajectories (
  stage, step, grp, rejected, failure, passed, sampled_tokens, finished_at);
CREATE TABLE metrics (
  stage TEXT NOT NULL, step INTEGER NOT NULL, name TEXT NOT NULL, value REAL, time REAL NOT NULL,
  PRIMARY KEY (stage, step, name));
CREATE TABLE trained (trajectory TEXT PRIMARY KEY, ordinal INTEGER NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE events (time REAL NOT NULL, kind TEXT NOT NULL, data TEXT NOT NULL);
"""

MOST_OF_EXAMPLE = 300
"""The characters of an example in a sentence about lost episodes."""


class RunFolderBusy(ConfigError):
    """Another process, or another store of this process, writes to the run folder."""


@dataclass(frozen=True, slots=True)
class LostEpisodes:
    """Episodes that failed by one class of errors, or were rejected for one reason, and the newest as an example."""

    kind: str
    """The class of the failure, or `rejected`."""
    reason: str
    """Why they were rejected; failed ones are, too."""
    count: int
    example: str
    """The id of an episode."""
    text: str
    """What explains the example; it may be empty."""

    @classmethod
    def of(cls, example: Trajectory, count: int) -> Self:
        """Return what is known of `count` episodes that were lost as this one was."""
        failure = example.failure
        text = failure.message if failure else example.rejected_because
        return cls(failure.kind if failure else "rejected", example.rejected or "", count, example.id, text)

    def describe(self) -> str:
        """Return `12 x no reward (The reward function score raised ValueError: ...)`."""
        name = self.reason or f"{self.kind} failure"
        text = " ".join(self.text.split())
        example = text[:MOST_OF_EXAMPLE].rstrip(".")
        return f"{self.count} x {name} ({example})" if example not in ("", name) else f"{self.count} x {name}"


class RunStore:
    """It reads and writes a run's database."""

    def __init__(
        self,
        folder: Path,
        connection: sqlite3.Connection,
        redact: Callable[[str], str] = lambda text: text,
        lock: int | None = None,
    ) -> None:
        self.folder = folder
        self._db = connection
        self._redact = redact
        self._lock = lock
        self.resumed = False
        """Whether a run goes on: then a request is answered by the rollout that was made for it before."""
        self._writer = ThreadPoolExecutor(1, "ale-store")

    @classmethod
    def create(cls, folder: Path, redact: Callable[[str], str] = lambda text: text) -> Self:
        """Make the run folder (it may exist) and open its database for writing; `redact` removes secrets from texts.

        Raises `ConfigError` if the folder cannot be made, or if another process, or another store of this process,
        writes to it.
        """
        lock = lock_folder(make_folder(folder, "run folder"))
        try:
            db = _open_database(folder / DB_NAME)
        except BaseException:
            os.close(lock)
            raise
        return cls(folder, db, redact, lock)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open an existing run for reading. Raises `ConfigError` if there is none."""
        path = folder / DB_NAME
        if not path.is_file():
            raise ConfigError(f"{folder} is not a run folder: it holds no {DB_NAME}.")
        try:
            db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)
            version = db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
        except sqlite3.DatabaseError as error:
            raise ConfigError(f"{path} cannot be read as a run database: {error}.") from error
        if version is None or int(version[0]) != SCHEMA_VERSION:
            found = "none" if version is None else version[0]
            raise ConfigError(
                f"{path} has schema version {found}; this version of ALE reads {SCHEMA_VERSION}. Start the run again, "
                "or read it with the release of ALE that wrote it."
            )
        return cls(folder, db)

    def close(self) -> None:
        """Close the database, and merge it into one file if nobody else has it open. It is idempotent."""
        self._writer.shutdown()
        with suppress(sqlite3.Error):  # another process reads it, or it is closed or read-only
            self._db.execute("PRAGMA journal_mode=DELETE")
        self._db.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def add_trajectory(self, t: Trajectory) -> None:
        """Store a finished rollout: once this returns, the rollout survives the end of this process, even a kill."""
        self._writer.submit(self._insert_trajectory, t).result()

    async def save_trajectory(self, t: Trajectory) -> None:
        """Do the same without holding up the event loop; a rollout is stored even if its task is cancelled."""
        await asyncio.shield(asyncio.wrap_future(self._writer.submit(self._insert_trajectory, t)))

    def change(self, *statements: tuple[str, Iterable[Iterable[Any]]]) -> None:
        """Execute SQL statements, each once for every row of its parameters, all of them or none."""
        self._writer.submit(self._transact, statements).result()

    def add_metrics(
        self, stage: str, step: int, metrics: Mapping[str, float], trained: Iterable[tuple[str, int, int]] = ()
    ) -> None:
        """Store the metrics of one step of a stage and, in the same transaction, what it has trained on: the id of each
        trajectory, the ordinal of its task, and the policy version that the step has made."""
        now = time.time()
        rows = [(stage, step, name, float(value), now) for name, value in metrics.items()]
        # SQLite stores a nan as NULL.
        insert = "INSERT OR REPLACE INTO metrics VALUES (?, ?, ?, ?, ?)"
        self.change((insert, rows), ("INSERT INTO trained VALUES (?, ?, ?)", trained))

    def add_event(self, kind: str, **data: Any) -> None:
        """Store an event."""
        row = (time.time(), kind, self._redact_text(json.dumps(data, default=str)))
        self._writer.submit(self._db.execute, "INSERT INTO events VALUES (?, ?, ?)", row).result()

    def _insert_trajectory(self, t: Trajectory) -> None:
        text, arrays = encode(t)
        reward = None if t.reward is None else t.reward.value
        failure = None if t.failure is None else t.failure.kind
        # SQLite stores no lone surrogate, which a policy may write.
        rejected = t.rejected and self._redact(t.rejected).encode("utf-8", "backslashreplace").decode()
        row = [t.id, t.stage, t.step, t.split, t.task_id, t.group, t.policy_version, reward, int(t.passed), rejected]
        row += [failure, len(t.chunks), t.sampled_tokens, t.seconds, time.time(), self._redact_text(text), arrays]
        self._db.execute(f"INSERT INTO trajectories VALUES ({','.join('?' * len(row))})", row)

    def _transact(self, statements: Iterable[tuple[str, Iterable[Iterable[Any]]]]) -> None:
        with self._db:  # it commits, or rolls back after an error
            self._db.execute("BEGIN")
            for sql, rows in statements:
                self._db.executemany(sql, map(tuple, rows))

    async def sync(self) -> None:
        """Write what is stored to the disk itself, where it survives a power cut too."""
        # Fetched there: a statement that is not done would keep the next transaction from its commit.
        await asyncio.wrap_future(self._writer.submit(lambda: self.rows("PRAGMA wal_checkpoint(FULL)")))

    def set_meta(self, facts: Mapping[str, str]) -> None:
        """Store facts about the run, such as its id."""
        self.change(("INSERT OR REPLACE INTO meta VALUES (?, ?)", facts.items()))

    def meta(self, key: str) -> str | None:
        """Return a fact about the run; None if it is not known."""
        found = self.rows("SELECT value FROM meta WHERE key = ?", (key,))
        return str(found[0][0]) if found else None

    def find_rollout(self, stage: str, step: int, group: str, task: str, seeds: Sequence[int]) -> Trajectory | None:
        """Return the trusted rollout of a group's task that one of these seeds made; None if there is none."""
        where = f"json_extract(data, '$.seed') IN ({','.join('?' * len(seeds))}) AND rejected IS NULL"
        where += " AND stage = ? AND step = ? AND grp = ? AND task_id = ?"
        return next(self.trajectories(where, (*seeds, stage, step, group, task)), None)

    def _redact_text(self, text: str) -> str:
        return redact_json(text, self._redact, OWN_WORDS)

    def trajectories(self, where: str = "1", parameters: Iterable[Any] = ()) -> Iterator[Trajectory]:
        """Yield stored rollouts in the order in which they finished; `where` is SQL over the table's columns."""
        sql = f"SELECT data, arrays FROM trajectories WHERE {where} ORDER BY finished_at, rowid"
        for data, arrays in self._db.execute(sql, tuple(parameters)):
            yield decode(data, arrays)

    def metrics(self, stage: str) -> dict[str, list[tuple[int, float]]]:
        """Return all metrics of a stage: name -> [(step, value), ...] by step."""
        out: dict[str, list[tuple[int, float]]] = {}
        sql = "SELECT name, step, value FROM metrics WHERE stage = ? ORDER BY name, step"
        for name, step, value in self._db.execute(sql, (stage,)):
            out.setdefault(name, []).append((step, math.nan if value is None else value))
        return out

    def stages(self) -> list[str]:
        """Return the stages that have metrics, in the order in which they began."""
        return [row[0] for row in self._db.execute("SELECT stage FROM metrics GROUP BY stage ORDER BY MIN(rowid)")]

    def events(self) -> list[tuple[float, str, dict[str, Any]]]:
        """Return the events in order, as (time, kind, data)."""
        found = self.rows("SELECT time, kind, data FROM events ORDER BY rowid")
        return [(t, kind, json.loads(data)) for t, kind, data in found]

    def rows(self, sql: str, parameters: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query over the tables at the head of this module, for readers of a run."""
        return self._db.execute(sql, tuple(parameters)).fetchall()

    def count(self, sql_condition: str = "1", parameters: Iterable[Any] = ()) -> int:
        """Return the number of stored rollouts that meet the condition."""
        return int(self.rows(f"SELECT COUNT(*) FROM trajectories WHERE {sql_condition}", parameters)[0][0])

    def sampled_tokens(self) -> int:
        """Return the number of tokens that the policy sampled in all rollouts, rejected ones included."""
        return int(self._db.execute("SELECT COALESCE(SUM(sampled_tokens), 0) FROM trajectories").fetchone()[0])

    def lost(self, most: int, sql_condition: str = "1", parameters: Iterable[Any] = ()) -> list[LostEpisodes]:
        """Return why rollouts that meet the condition failed or were rejected; the most frequent reasons come first."""
        sql = "SELECT failure, rejected, COUNT(*), MAX(rowid) FROM trajectories"
        sql += f" WHERE COALESCE(failure, rejected) IS NOT NULL AND ({sql_condition})"
        sql += " GROUP BY 1, 2 ORDER BY 3 DESC, 4 LIMIT ?"
        return [
            LostEpisodes.of(next(self.trajectories("rowid = ?", (newest,))), count)
            for _, _, count, newest in self.rows(sql, (*parameters, most))
        ]

    def reasons(self, stage: str, step: int) -> str:
        """Return the three most frequent reasons of a step for a sentence, each with an example:
        `12 x no reward (The reward function ...), 3 x ...`."""
        return ", ".join(lost.describe() for lost in self.lost(3, "stage = ? AND step = ?", (stage, step)))

    def failures(self) -> dict[str, int]:
        """Count rollouts by class of failure or reason of rejection."""
        sql = "SELECT COALESCE(failure, 'rejected'), COUNT(*) FROM trajectories"
        sql += " WHERE COALESCE(failure, rejected) IS NOT NULL GROUP BY 1"
        return {str(kind): int(n) for kind, n in self._db.execute(sql)}


def lock_folder(folder: Path) -> int:
    """Return a descriptor that holds the lock of a run's folder until it is closed. Raises `RunFolderBusy` if the lock
    is taken."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise RunFolderBusy(f"Another process writes to {folder}; wait for its end, or give another folder.") from None
    return descriptor


def _open_database(path: Path) -> sqlite3.Connection:
    """Open a run's database for writing; it is made if it does not exist."""
    if not path.exists():
        # It gets its name only once it has its tables, so that no reader sees it without them, even after a kill.
        aside = path.with_suffix(".new")
        aside.unlink(missing_ok=True)
        with closing(sqlite3.connect(aside, isolation_level=None)) as db:
            db.execute("PRAGMA journal_mode=WAL")
            db.executescript(_SCHEMA)
            db.execute("INSERT INTO meta VALUES ('schema', ?)", (str(SCHEMA_VERSION),))
        aside.rename(path)
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    with suppress(sqlite3.OperationalError):  # another process reads it now
        db.execute("PRAGMA journal_mode=WAL")  # set again, because `close` has made one file of it
    db.execute("PRAGMA synchronous=NORMAL")
    return db
