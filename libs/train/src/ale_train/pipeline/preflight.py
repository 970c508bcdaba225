"""Checks a run before anything starts: `plan_run` returns it checked, with its parts made once for who needs them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ale.config.capabilities import Need, Requirements, list_names, message_engine
from ale.errors import ConfigError
from ale.specs.engine import InferenceEngine, agree_on_transport
from ale.specs.trainer import TrainerBackend
from ale_train.config.load import LoadedConfig
from ale_train.config.run import RunConfig
from ale_train.models.named_model import check_model
from ale_train.models.policy_checks import check_policy
from ale_train.pipeline.stages import Only, Stages, make_stages
from ale_train.rl.fork import Fork


@dataclass(frozen=True)
class RunPlan:
    """A run that was checked."""

    loaded: LoadedConfig
    required: Requirements
    stages: Stages
    only: Only
    source: Path | None
    """The run folder from which it takes its policy or its rollouts."""
    message_engine: str | None
    """The name of the engine, if it answers with messages in the policy's place."""
    fork: Fork | None = None
    """The checkpoint of another run that it begins with."""

    @property
    def config(self) -> RunConfig:
        """The configuration."""
        return self.loaded.run

    def with_new_stages(self) -> RunPlan:
        """Return the plan for another attempt: each has stages of its own."""
        return replace(self, stages=make_stages(self.config, self.only, self.source, self.fork))


def plan_run(loaded: LoadedConfig, only: Only = "all", source: Path | None = None, fork: Fork | None = None) -> RunPlan:
    """Check a run, and refuse one that could not work. `source` is the run folder from which it takes its policy or its
    rollouts, `fork` the checkpoint of another run that it begins with. Raises `ConfigError`, `PluginError`."""
    run = loaded.run
    _check_halves(only, source)
    _check_fork(run, fork)
    folder = None if run.model.path is None or fork else check_model(run.model.path, run.model.revision)
    messages = message_engine(run)
    if folder is not None and messages is None:
        check_policy(run.model, folder)
    _check_message_engine(messages, run, only, source)
    stages = make_stages(run, only, source, fork)
    _check_stages(run, stages)
    required = check_capabilities(run, train=only != "rollout" and run.trains)
    return RunPlan(loaded, required, stages, only, source, messages, fork)


def check_capabilities(run: RunConfig, *, train: bool) -> Requirements:
    """Return what the run's plugins need of each other, and what it needs to `train`; refuse plugins that lack some of
    it. Raises `PluginError`."""
    required = Requirements(run, _needs_of_training(run) if train else ())
    required.refuse_lacking(_lacking_transports(required) if train else ())
    return required


def _check_halves(only: Only, source: Path | None) -> None:
    if only == "train" and source is None:
        raise ConfigError("'--only train' trains on a dump of rollouts: name its run folder with '--from RUN'.")
    if only == "all" and source is not None:
        raise ConfigError("'--from RUN' goes with '--only rollout' or '--only train'.")
    if source is not None and not (source / "run.db").is_file():
        raise ConfigError(f"'--from {source}': there is no run folder (it holds no run.db).")


def _check_fork(run: RunConfig, fork: Fork | None) -> None:
    if fork is not None and run.rl is None:
        raise ConfigError("'--fork RUN' goes on with reinforcement learning, and the run file has no section 'rl'.")


def _check_message_engine(name: str | None, run: RunConfig, only: Only, source: Path | None) -> None:
    if name and (only == "train" or (only == "all" and run.trains)):
        raise ConfigError(
            f"engine: '{name}' answers with messages of another model, whose tokens are not the policy's, "
            "so there is nothing to train. Use '--only rollout' or 'ale eval'; what a rollout leaves is data for "
            "sft.demonstrations.data of another run."
        )
    if name and source is not None:
        raise ConfigError(f"engine: '{name}' answers in the policy's place; leave out '--from RUN'.")


def _check_stages(run: RunConfig, stages: Stages) -> None:
    """Refuse a run to which a stage objects. Raises `ConfigError`, a line each."""
    found = []
    for stage in stages:
        try:
            stage.check(run)
        except ConfigError as error:
            found.append(str(error))
    if found:
        raise ConfigError("\n".join(dict.fromkeys(found)))


def _needs_of_training(run: RunConfig) -> Iterator[Need]:
    if run.sft is not None and run.sft.runs_demonstrations:
        yield Need("sft.demonstrations", "tasks", "demonstrations")
    if run.rl is not None:
        yield Need("rl", "engine", "real_tokens")


def _lacking_transports(required: Requirements) -> Iterator[str]:
    """Yield a sentence if trainer and engine have no transport of weights in common."""
    for trainer in (part for part in required.parts if part.kind == "trainer"):
        for engine in (part for part in required.parts if part.kind == "engine"):
            assert issubclass(trainer.cls, TrainerBackend)
            assert issubclass(engine.cls, InferenceEngine)
            offered, accepted = trainer.cls.transports, getattr(engine.config, "transports", engine.cls.transports)
            if agree_on_transport(offered, accepted) is None:
                takes, gives = list_names(accepted) or "no transport", list_names(offered) or "no transport"
                yield (
                    f"{engine.path}: '{engine.use}' takes new weights by {takes}, and {trainer} publishes them by "
                    f"{gives}; use an engine and a trainer that have a transport in common."
                )
