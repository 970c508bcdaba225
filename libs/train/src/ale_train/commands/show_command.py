"""`ale show`: a run, or one of its episodes, in the terminal or as JSON. It only reads, so the run may go on."""

from __future__ import annotations

import json
import math
import sqlite3
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ale.errors import ConfigError
from ale.store.encoding import trajectory_to_dict
from ale.store.run_store import RunStore
from ale_train.show.episode_lines import episode_lines
from ale_train.show.episode_rows import Filters, find_episode, list_episodes
from ale_train.show.lines import show_lines
from ale_train.show.run_facts import open_run, read_run_facts, read_settings
from ale_train.show.run_lines import run_lines


def show(
    folder: Path, episode: str | None, filters: Filters, limit: int, full: bool = False, as_json: bool = False
) -> None:
    """Show a run, or the episode whose id begins with `episode`. Raises `ConfigError`."""
    if episode is not None and filters != Filters():
        raise ConfigError("EPISODE names one episode; leave out --failed, --tag, --step and --stage.")
    try:
        with open_run(folder) as store:
            if episode is None:
                _show_run(store, folder, filters, limit, as_json)
            else:
                _show_episode(store, episode, full, as_json)
    except sqlite3.DatabaseError as error:
        raise ConfigError(f"The database of {folder} cannot be read: {error}.") from error


def _show_run(store: RunStore, folder: Path, filters: Filters, limit: int, as_json: bool) -> None:
    rows = list_episodes(store, filters, limit)
    facts = read_run_facts(store)
    if as_json:
        print_json({**asdict(facts), "shown": [asdict(row) for row in rows]})
    else:
        show_lines(run_lines(str(folder), facts, rows, filters, limit))


def _show_episode(store: RunStore, beginning: str, full: bool, as_json: bool) -> None:
    t = find_episode(store, beginning)
    if as_json:
        print_json(trajectory_to_dict(t))
        return
    trained = store.rows("SELECT version FROM trained WHERE trajectory = ?", (t.id,))
    show_lines(episode_lines(t, read_settings(store), trained[0][0] if trained else None, full))


def print_json(value: Any) -> None:
    """Print JSON in ASCII; a number that is not finite, which JSON has no word for, is null."""
    print(json.dumps(_finite(value), indent=1))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
