"""Finds the policies that a run folder holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ale.errors import ConfigError
from ale_train.checkpoints.checkpoint_folders import CHECKPOINTS, complete

POLICIES = ("final", "sft", "cpt", "initial")
"""The model folders of a run, the most trained policy first."""


def most_trained(run: Path) -> Path:
    """Return the most trained policy of a run: the final one of its last stage, else the newest checkpoint of that
    stage, else the same of the stages before, else the policy that the run began with. Raises `ConfigError` if the run
    has no policy."""
    names = zip(POLICIES, ("step", "sft", "cpt", ""), strict=True)
    return _first(run, [place for name, of in names for place in (f"model/{name}", *_checkpoints(run, of))])


def before_rl(run: Path) -> Path:
    """Return the policy with which a run's RL began. Raises `ConfigError` if there is none."""
    return _first(run, [f"model/{name}" for name in POLICIES[1:]])


def name_policy(folder: Path, run: Path | None = None) -> str:
    """Return what to call the policy of a model folder: `final policy of RUN` if it is one of that run's, else its
    path."""
    if run is None or not folder.resolve().is_relative_to(run.resolve()):
        return f"policy {folder}"
    names = {"final": "final policy", "initial": "initial policy", "sft": "policy after sft", "cpt": "policy after cpt"}
    name = names.get(folder.name, f"policy at {folder.name.replace('_', ' ')}")
    return f"{name} of {run.resolve().name}"


def _first(run: Path, places: Sequence[str]) -> Path:
    for place in places:
        if (run / place / "config.json").is_file():
            return run / place
    raise ConfigError(
        f"{run} holds no policy (looked for {', '.join(places)}); name one: `ale eval {run} --model FOLDER`, or with "
        "`ale run` model.path=FOLDER and model.scratch=null."
    )


def _checkpoints(run: Path, stage: str) -> list[str]:
    """Return the checkpoints of a stage, the newest first."""
    return [str(path.relative_to(run)) for _, path in complete(run / CHECKPOINTS, stage)]
