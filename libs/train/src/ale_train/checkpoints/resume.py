"""Decides whether an interrupted run can be resumed with a run file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ale.errors import ConfigError
from ale.store.run_store import CONFIG_NAME, SUMMARY_NAME, RunStore
from ale_train.checkpoints.checkpoint_folders import CHECKPOINTS, LATEST

HARMLESS = (
    "name", "run_dir", "observers", "eval", "pool", "rollout.concurrency",
    "rl.scoring_concurrency", "rl.multiplex", "rl.patience_s", "rl.stall_s",
    "rl.checkpoint_every", "rl.checkpoint_keep", "rl.min_entropy", "sft.checkpoint_every",
    "cpt.checkpoint_every", "engine", "trainer.threads", "trainer.ranks", "trainer.device",
    "cluster",
)  # fmt: skip
"""Keys, or sections of keys, that a resumed run may change, because they do not decide what it learns."""
SAMPLING = ("temperature", "top_p", "top_k", "max_tokens")
"""Keys of `eval` that a resumed run may not change: an interrupted evaluation goes on with the episodes that it has."""


def run_to_resume(folder: Path, config: str) -> str:
    """Return the id of the run in a folder. Raises `ConfigError` if it cannot go on with the run file whose text is
    `config`."""
    with RunStore.open(folder) as store:
        run_id, before = store.meta("run_id"), store.meta("config")
    if run_id is None or before is None:
        raise ConfigError(f"{folder} holds no run that could go on; start it anew with another --out.")
    summary = folder / SUMMARY_NAME
    if summary.exists() and json.loads(summary.read_text())["status"] == "completed":
        raise ConfigError(f"The run in {folder} is complete; there is nothing to go on with.")
    now = yaml.safe_load(config)
    constant = (now.get("rl") or {}).get("lr") is None  # else the learning rate follows from the number of steps
    changed = _differences(yaml.safe_load(before), now, "")
    keys = [key for key in changed if not (_is_harmless(key) or (key == "rl.steps" and constant))]
    if keys:
        raise ConfigError(
            f"A resumed run cannot change {', '.join(keys)}: it has learned with other values so far. "
            f"Leave {folder / CONFIG_NAME} as it was, or start a new run from a policy of this one (model.path)."
        )
    return run_id


def newest_checkpoint(folder: Path) -> str:
    """Return the name of the run's newest checkpoint; empty if there is none."""
    latest = folder / CHECKPOINTS / LATEST
    return latest.read_text().strip() if latest.exists() else ""


def _is_harmless(key: str) -> bool:
    section, _, name = f".{key}".rpartition(".")
    if section.startswith(".eval") and name in SAMPLING:
        return False
    return any(f"{key}.".startswith(f"{one}.") for one in HARMLESS)


def _differences(before: Any, now: Any, path: str) -> Iterator[str]:
    """Yield the dotted keys in which two configurations differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}, key=str):
            yield from _differences(before.get(key), now.get(key), f"{path}{key}.")
    elif before != now:
        yield path.rstrip(".")
