"""A new run that begins with a checkpoint of another one: `ale run FILE --fork RUN[@STEP]`.

1. `find_fork` reads `RUN[@STEP]`, and `load_fork` refuses a run file with another model than that run's.
2. `begin_fork` copies the checkpoint to `checkpoints/step_0` of the new run folder: the weights, the optimizer and the
   algorithm's state stay, and everything else of the loop begins anew. Demonstrations, and the last rollouts that the
   algorithm has not looked at yet, come along.
3. From then on the new run needs the other one no more, and goes on like any run if it is interrupted.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from ale.config.references import resolve
from ale.errors import ConfigError
from ale.registry.drivers import load_plugin
from ale.registry.validation import one_line_error, validate
from ale.rollout.episode import DEMONSTRATIONS_STAGE
from ale.specs.algorithm import Algorithm
from ale.specs.choice import PluginChoice
from ale.store.run_store import DB_NAME, RunStore
from ale_train.checkpoints.checkpoint_folders import (
    CHECKPOINTS,
    STEP,
    complete,
    finish_checkpoint,
    restore_newest_whole,
    step_checkpoint,
)
from ale_train.checkpoints.resume import find_differences
from ale_train.config.load import LoadedConfig, load_run_config
from ale_train.config.run import ModelConfig, RunConfig
from ale_train.models.whole_folders import remove
from ale_train.rl.checkpoint import LOOP_FILE, LoopState, read_state
from ale_train.rl.collapse_guard import CollapseGuard
from ale_train.workbench.workbench import Workbench

FORKED_FROM = "forked_from"
"""The fact in a run's store that it is a fork: the run and the step that it began with, as JSON."""
BEFORE_FORK = "before_fork"
"""The stage under which rollouts of the other run are stored, at which the algorithm looks with its next plan."""


@dataclass(frozen=True)
class Fork:
    """The checkpoint of a run with which another one begins."""

    run: Path
    step: int

    def __str__(self) -> str:
        return f"step {self.step} of {self.run}"

    @property
    def checkpoint(self) -> Path:
        """The folder of the checkpoint."""
        return step_checkpoint(self.run, self.step)


class ForkRefused(ConfigError):
    """The trainer of a fork's run file is none that its checkpoint can be restored in. Going on would not help."""


def find_fork(text: str) -> Fork:
    """Return the checkpoint that `RUN` (the newest one) or `RUN@STEP` names. Raises `ConfigError`."""
    run, step = Path(text), ""
    if not run.exists() and "@" in text:
        name, _, step = text.rpartition("@")
        run = Path(name)
    if not (run / DB_NAME).is_file():
        raise ConfigError(f"'--fork {text}': there is no run folder {run} (it holds no {DB_NAME}).")
    found = [number for number, _ in complete(run / CHECKPOINTS, STEP)]
    if not found:
        raise ConfigError(
            f"'--fork {text}': {run} holds no checkpoint of reinforcement learning; begin with a policy of it instead "
            "(model.path)."
        )
    if step and not step.isdecimal():
        raise ConfigError(f"'--fork {text}': after the @ must be the number of a step; there are {_list(found)}.")
    if step and int(step) not in found:
        raise ConfigError(
            f"'--fork {text}': {run} holds no checkpoint of step {int(step)}; there are those of {_list(found)} "
            "(rl.checkpoint_every and rl.checkpoint_keep say which are kept)."
        )
    return Fork(run.resolve(), int(step) if step else found[0])


def fork_of(folder: Path) -> Fork | None:
    """Return the checkpoint with which the run in a folder began; None if it is no fork."""
    with RunStore.open(folder) as store:
        text = store.meta(FORKED_FROM)
    return None if text is None else Fork(Path(json.loads(text)["run"]), json.loads(text)["step"])


def load_fork(file: Path, overrides: Sequence[str], fork: Fork) -> LoadedConfig:
    """Load the run file of a fork; one that names no model gets that of the other run. Raises `ConfigError` if it names
    another one."""
    written = _read_config(fork)
    loaded = load_run_config(file, overrides)
    if loaded.run.model == ModelConfig():
        loaded = load_run_config(file, [*overrides, f"model={json.dumps(written.get('model') or {})}"])
    with suppress(ConfigError):  # a variable of the environment is missing, which may have nothing to do with the model
        written = resolve(written, str(fork.run)).data
    theirs, ours = _plain(validate(ModelConfig, written.get("model") or {})), _plain(loaded.run.model)
    if keys := [*find_differences(theirs, ours, "model.")]:
        raise ConfigError(
            f"A fork has the model and the tokenizer of its checkpoint, so it cannot change {', '.join(keys)}: leave "
            f"the section model out, or as it is in {fork.run}, or begin a run without --fork."
        )
    return loaded


def begin_fork(store: RunStore, fork: Fork, config: RunConfig) -> str:
    """Copy what a new run takes from another one into its folder and its store. Returns a sentence about what it cannot
    take, or an empty text. Raises `ConfigError`."""
    making = store.folder / CHECKPOINTS / ".making_0"
    initial = fork.run / "model" / "initial"
    try:
        state = read_state(fork.checkpoint)
        algorithm, note = _algorithm_state(state, fork, config)
        finished = state.producer["finished"] if algorithm else []
        remove(making)
        shutil.copytree(fork.checkpoint, making)
        (making / LOOP_FILE).write_text(json.dumps(vars(_new_state(state, finished, algorithm))))
        if config.model.path is None and initial.is_dir():  # what a LoRA adapter is of
            shutil.copytree(initial, store.folder / "model" / "initial", dirs_exist_ok=True)
        ids = json.dumps(sorted({id for group in finished for id in group["rollouts"]}))
        with RunStore.open(fork.run) as other:
            for made in other.trajectories("stage = ? AND rejected IS NULL", (DEMONSTRATIONS_STAGE,)):
                store.add_trajectory(made)
            for made in other.trajectories("id IN (SELECT value FROM json_each(?))", (ids,)):
                store.add_trajectory(replace(made, stage=BEFORE_FORK, step=0))
        finish_checkpoint(making, step_checkpoint(store.folder, 0))
    except (OSError, ValueError, KeyError) as error:
        remove(making)
        raise ConfigError(f"The checkpoint {fork.checkpoint} cannot be copied: {one_line_error(error)}.") from error
    return note


async def restore_fork(bench: Workbench, fork: Fork) -> int:
    """Restore trainer and engine from the newest checkpoint of a fork; returns how many steps it has made. Raises
    `ConfigError` or `TrainerError`."""
    folder = bench.folder / CHECKPOINTS

    async def restore(path: Path) -> None:
        await bench.restore(path, read_state(path).version)

    found = complete(folder, STEP)
    if [step for step, _ in found] == [0]:
        try:
            await restore(found[0][1])
        except ConfigError as error:  # as a resumed run would say again
            raise ForkRefused(f"{error} Then fork again into another folder; {bench.folder} may go.") from error
        return 0
    restored = await restore_newest_whole(folder, STEP, restore, "reinforcement learning")
    if restored is None:
        raise ConfigError(f"{folder} holds no checkpoint any more; begin again with --fork {fork.run}@{fork.step}.")
    return restored[0]


def _algorithm_state(state: LoopState, fork: Fork, config: RunConfig) -> tuple[dict[str, Any], str]:
    """Return the algorithm's state for the new run, and a sentence if it has another algorithm."""
    theirs = _name(_read_config(fork).get("algorithm", RunConfig.model_fields["algorithm"].default))
    if theirs != _name(config.algorithm):
        lost = "its state is not taken over" if state.algorithm else "there is no state to take over"
        return {}, f"The algorithm was '{theirs}' and is '{_name(config.algorithm)}': {lost}."
    cls = load_plugin("algorithm", config.algorithm, "algorithm").cls
    assert issubclass(cls, Algorithm)
    return cls.renumber(state.algorithm, state.step), ""


def _new_state(state: LoopState, finished: Sequence[Mapping[str, Any]], algorithm: dict[str, Any]) -> LoopState:
    """Return the state of a loop that has made no step yet, with these groups for the algorithm to look at."""
    names = {name for group in finished for name in group["groups"]}
    producer = {
        "taken": 0,
        "ordinal": 0,
        "planned": [],
        "returned": [],
        "open": [],
        "finished": [{**group, "ordinal": i - len(finished)} for i, group in enumerate(finished)],
        "given_up": {name: kinds for name, kinds in state.producer["given_up"].items() if name in names},
        "diverged": [],
        "counts": {"even": 0, "replaced": 0, "late": 0, "replaced_tokens": 0},
    }
    guard = CollapseGuard(min_entropy=0, lr="").state()
    return LoopState(0, state.version, producer, algorithm, guard, evaluations={}, seconds={})


def _read_config(fork: Fork) -> dict[str, Any]:
    """Return the data of the other run's file."""
    with RunStore.open(fork.run) as store:
        return dict(yaml.safe_load(store.meta("config") or "{}") or {})


def _plain(model: ModelConfig) -> dict[str, Any]:
    """Return the settings of a model as plain values; a folder has one path, however it is written."""
    found = model.model_dump()
    for key in ("path", "chat_template"):
        if isinstance(path := found[key], Path) and path.exists():
            found[key] = path.resolve()
    return found


def _name(section: Any) -> str:
    """Return the name of the plugin in a section; of a class in a file, the names of both, wherever the file is."""
    if isinstance(section, dict):
        section = section.get("use")
    use = section.use if isinstance(section, PluginChoice) else str(section)
    return use.rpartition("/")[2]


def _list(steps: Sequence[int]) -> str:
    """Return `step 20` or `the steps 10, 20`."""
    numbers = ", ".join(map(str, sorted(steps)))
    return f"step {numbers}" if len(steps) == 1 else f"the steps {numbers}"
