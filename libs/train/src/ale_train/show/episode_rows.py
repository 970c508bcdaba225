"""The table of a run's episodes, and the search for one of them. Whatever a run's size, only rows that are shown are
read as a whole; only for a tag, which has no column, are rows read one by one until enough have it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ale.errors import ConfigError
from ale.store.run_store import RunStore
from ale.trajectory import Trajectory

LOST = "(failure IS NOT NULL OR rejected IS NOT NULL)"
MAX_MATCHES = 10
_COLUMNS = "id, stage, step, task_id, grp, reward, passed, rejected, failure, chunks, sampled_tokens, seconds, data"


@dataclass(frozen=True, slots=True)
class Filters:
    """Which episodes are asked for."""

    failed: bool = False
    tag: str | None = None
    step: int | None = None
    stage: str | None = None

    def where(self) -> tuple[str, list[Any]]:
        """Return SQL over the columns, which is all but the tag, and its parameters."""
        conditions, parameters = ["1"], list[Any]()
        if self.failed:
            conditions.append(LOST)
        for column, value in (("stage", self.stage), ("step", self.step)):
            if value is not None:
                conditions.append(f"{column} = ?")
                parameters.append(value)
        return " AND ".join(conditions), parameters


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """An episode in the table."""

    id: str
    stage: str
    step: int
    task: str
    group: str
    outcome: str
    reward: float | None
    turns: int
    tokens: int
    seconds: float
    ended_by: str
    tags: tuple[str, ...]
    why: str
    """Why it failed or was rejected."""


def outcome_of(failure: object, rejected: object, passed: object) -> str:
    """Return an episode's outcome in a word."""
    return "failure" if failure else "rejected" if rejected else "passed" if passed else "not passed"


def list_episodes(store: RunStore, filters: Filters, limit: int) -> list[EpisodeRow]:
    """Return the newest episodes that are asked for, the newest first. Raises `ConfigError` for a stage without any."""
    where, parameters = filters.where()
    if filters.stage is not None and not store.rows(
        "SELECT 1 FROM trajectories WHERE stage = ? LIMIT 1", (filters.stage,)
    ):
        stages = [row[0] for row in store.rows("SELECT DISTINCT stage FROM trajectories")]
        raise ConfigError(f"--stage {filters.stage}: no episode is of it. Stages: {', '.join(stages) or 'none yet'}.")
    if filters.tag is not None:
        return list(_with_tag(store, where, parameters, filters.tag, limit))
    # The inner query reads an index alone, as rows are large; `+` keeps SQLite from walking the rows instead.
    newest = f"SELECT rowid FROM trajectories WHERE {where} ORDER BY {'' if where == '1' else '+'}rowid DESC LIMIT ?"
    sql = f"SELECT {_COLUMNS} FROM trajectories WHERE rowid IN ({newest}) ORDER BY rowid DESC"
    return [_row(row) for row in store.rows(sql, (*parameters, limit))]


def _with_tag(store: RunStore, where: str, parameters: Sequence[Any], tag: str, limit: int) -> Iterator[EpisodeRow]:
    before, found = None, 0
    while found < limit:
        older = "" if before is None else f" AND rowid < {before}"
        sql = f"SELECT rowid, {_COLUMNS} FROM trajectories WHERE {where}{older} ORDER BY rowid DESC LIMIT 50"
        rows = store.rows(sql, parameters)
        if not rows:
            return
        before = rows[-1][0]
        for _, *row in rows:
            data = json.loads(row[-1])
            if tag in (*data["tags"], *(f"{section}:{use}" for section, use in data["made_with"])):
                found += 1
                yield _row(row, data)
                if found == limit:
                    return


def _row(row: Sequence[Any], data: Mapping[str, Any] | None = None) -> EpisodeRow:
    id_, stage, step, task, group, reward, passed, rejected, failure, chunks, tokens, seconds, text = row
    data = data or json.loads(text)
    message = (data.get("failure") or {}).get("message", "")
    why = f"{failure}: {message}" if failure else ": ".join(p for p in (rejected, data["rejected_because"]) if p)
    outcome = outcome_of(failure, rejected, passed)
    tags = tuple(data["tags"])
    return EpisodeRow(
        id_, stage, step, task, group, outcome, reward, chunks, tokens, seconds, data["ended_by"], tags, why
    )


def find_episode(store: RunStore, beginning: str) -> Trajectory:
    """Return the episode whose id begins so. Raises `ConfigError` if there is none, or more than one."""
    sql = "SELECT id, task_id FROM trajectories WHERE id >= ? AND id < ? || char(1114111) ORDER BY id LIMIT ?"
    found = store.rows(sql, (beginning, beginning, MAX_MATCHES + 1))
    exact = [row for row in found if row[0] == beginning]
    if len(exact or found) == 1:
        return next(store.trajectories("id = ?", ((exact or found)[0][0],)))
    if found:
        more = ", ..." if len(found) > MAX_MATCHES else ""
        names = ", ".join(f"{id_} ({task})" for id_, task in found[:MAX_MATCHES])
        raise ConfigError(f"The ids of several episodes begin with '{beginning}': {names}{more}. Give more of it.")
    newest = "SELECT id FROM trajectories WHERE task_id = ? ORDER BY rowid DESC LIMIT ?"
    if of_task := store.rows(newest, (beginning, MAX_MATCHES)):
        names = ", ".join(row[0] for row in of_task)
        raise ConfigError(f"'{beginning}' is a task. The newest of its episodes: {names}.")
    raise ConfigError(
        f"No episode of {store.folder} has an id that begins with '{beginning}'; `ale show {store.folder}` lists them."
    )
