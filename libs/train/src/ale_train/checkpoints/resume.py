"""Decides whether a run can go on with a run file: one that was interrupted, or a finished one that gets more steps."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel

from ale.errors import ConfigError
from ale.rollout.episode import RL_STAGE
from ale.store.run_store import CONFIG_NAME, RunStore
from ale_train.checkpoints.checkpoint_folders import CHECKPOINTS, LATEST, STEP, step_checkpoint
from ale_train.config.rl import RLConfig
from ale_train.config.run import RunConfig

HARMLESS = (
    "name", "run_dir", "observers", "eval", "pool", "rollout.concurrency", "rollout.timeout_s",
    "rl.steps", "rl.scoring_concurrency", "rl.multiplex", "rl.patience_s", "rl.stall_s", "rl.probe_limit",
    "rl.checkpoint_every", "rl.checkpoint_keep", "rl.min_entropy", "sft.checkpoint_every",
    "cpt.checkpoint_every", "engine", "trainer.threads", "trainer.ranks", "trainer.device",
    "cluster",
)  # fmt: skip
"""Keys, or sections of keys, that a resumed run may change, because they do not decide what it learns from a step."""
SAMPLING = ("temperature", "top_p", "top_k", "max_tokens")
"""Keys of `eval` that a resumed run may not change: an interrupted evaluation goes on with the episodes that it has."""


class Half(NamedTuple):
    """The part of the loop that a run makes (`--only`), and the run folder that it takes its policy from (`--from`)."""

    only: str = "all"
    source: Path | None = None


def half_to_resume(folder: Path) -> Half:
    """Return the part of the loop that the run in a folder makes. A dump of rollouts takes its policy from itself, once
    it has it. Raises `ConfigError` if such a part cannot go on."""
    with RunStore.open(folder) as store:
        began = _find_half(store)
    if began.only == "train":
        raise ConfigError(
            f"The run in {folder} trains on a dump ('--only train') and leaves no checkpoints to go on from; start it "
            "anew with another --out."
        )
    has_policy = began.only == "rollout" and (folder / "model" / "initial").is_dir()
    return Half(began.only, folder) if has_policy else began


def run_to_resume(folder: Path, config: str, steps: int | None) -> str:
    """Return the id of the run in a folder. Raises `ConfigError` if it cannot go on with the run file whose text is
    `config`, which asks for so many steps of reinforcement learning (None: for none)."""
    with RunStore.open(folder) as store:
        run_id, before, complete = store.meta("run_id"), store.meta("config"), _is_complete(store)
        only, measured = _find_half(store).only, _newest_step(store)
    if run_id is None or before is None:
        raise ConfigError(f"{folder} holds no run that could go on; start it anew with another --out.")
    old, now = yaml.safe_load(before), yaml.safe_load(config)
    changed = [*find_differences(_with_sections(old), _with_sections(now), "")]
    keys = [key for key in changed if not (_is_harmless(key) or (key == "rl" and old.get("rl") is None))]
    if keys and all(key.startswith("eval.") for key in keys):
        raise ConfigError(
            f"A resumed run cannot change {', '.join(keys)}: its evaluations would not compare with those before. "
            f"`ale eval {folder} {keys[0]}=VALUE` measures its policy with another value."
        )
    if keys:
        raise ConfigError(
            f"A resumed run cannot change {', '.join(keys)}: it has learned with other values so far. Leave "
            f"{folder / CONFIG_NAME} as it was, or begin a new run with other values where this one stands: "
            f"ale run {folder / CONFIG_NAME} --fork {folder} KEY=VALUE."
        )
    done = measured if only == "rollout" else _steps_in_checkpoint(folder)
    if steps is not None and steps < done:
        raise ConfigError(
            f"rl.steps is {steps}, but the run in {folder} has made {done} steps: give it at least as many, or begin a "
            f"new run at an earlier step: ale run {folder / CONFIG_NAME} --fork {folder}@STEP."
        )
    if not complete:
        return run_id
    if steps is None:
        raise ConfigError(f"The run in {folder} is complete; there is nothing to go on with.")
    if steps <= max(done, measured):
        raise ConfigError(
            f"The run in {folder} is complete: it has made its {steps} steps. Give it more (rl.steps={2 * steps or 1}) "
            f"to go on with it; `ale eval {folder}` evaluates its policy again."
        )
    if only == "all" and measured and not step_checkpoint(folder, done).is_dir():
        raise ConfigError(
            f"The run in {folder} has made {measured} steps, but the checkpoint to go on from is not there any more; "
            "start a new run from its policy (model.path)."
        )
    return run_id


def describe_new_rates(folder: Path, rl: RLConfig | None) -> str:
    """Return a sentence if a run goes on with another number of steps, from which its learning rates follow; else an
    empty text."""
    with RunStore.open(folder) as store:
        before = (yaml.safe_load(store.meta("config") or "") or {}).get("rl")
    if rl is None or rl.lr is None or before is None:
        return ""
    old = before.get("steps", RLConfig.model_fields["steps"].default)
    if old == rl.steps:
        return ""
    return (
        f"rl.lr falls until the last step: earlier steps had the rates of a run of {old} steps, those to come have the "
        f"rates of one of {rl.steps}."
    )


def newest_checkpoint(folder: Path) -> str:
    """Return the name of the run's newest checkpoint; empty if there is none."""
    latest = folder / CHECKPOINTS / LATEST
    return latest.read_text().strip() if latest.exists() else ""


def _steps_in_checkpoint(folder: Path) -> int:
    """Return how many steps of reinforcement learning the newest checkpoint holds."""
    name, _, number = newest_checkpoint(folder).rpartition("_")
    return int(number) if name == STEP else 0


def _newest_step(store: RunStore) -> int:
    return int(store.rows("SELECT COALESCE(MAX(step), 0) FROM metrics WHERE stage = ?", (RL_STAGE,))[0][0])


def _is_complete(store: RunStore) -> bool:
    """Return whether the newest attempt at the run came to its end."""
    kinds = "kind IN ('run_started', 'run_resumed', 'run_finished')"
    found = store.rows(f"SELECT kind, data FROM events WHERE {kinds} ORDER BY rowid DESC LIMIT 1")
    return bool(found) and json.loads(found[0][1]).get("status") == "completed"


def _find_half(store: RunStore) -> Half:
    """Return the part of the loop that a run began as."""
    found = store.rows("SELECT data FROM events WHERE kind = 'run_started' ORDER BY rowid DESC LIMIT 1")
    data = json.loads(found[0][0]) if found else {}
    source = data.get("source")
    return Half(data.get("only", "all"), None if source is None else Path(source))


def _is_harmless(key: str) -> bool:
    section, _, name = f".{key}".rpartition(".")
    if section.startswith(".eval") and name in SAMPLING:
        return False
    return any(f"{key}.".startswith(f"{one}.") for one in HARMLESS)


def _with_sections(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run file's data with the sections that it leaves out: empty ones, or those of the default plugins."""
    found = dict(data)
    for name, field in RunConfig.model_fields.items():
        if name not in found and isinstance(field.default, str):
            found[name] = {"use": field.default}
        elif name not in found and isinstance(field.default, BaseModel | dict):
            found[name] = {}
    return found


def find_differences(before: Any, now: Any, path: str) -> Iterator[str]:
    """Yield the dotted keys in which two configurations differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}, key=str):
            yield from find_differences(before.get(key), now.get(key), f"{path}{key}.")
    elif before != now:
        yield path.rstrip(".")
