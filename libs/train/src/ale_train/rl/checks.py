"""Checks a run before reinforcement learning starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ale.config.capabilities import message_engine
from ale.errors import ConfigError
from ale.registry.drivers import build_driver, load_plugin
from ale.specs.algorithm import Algorithm, RunOutline
from ale.specs.driver import DriverContext
from ale_train.config.rl import RLConfig
from ale_train.config.run import RunConfig
from ale_train.workbench.workbench import Workbench


def check_algorithm(run: RunConfig, config: RLConfig, *, demonstrations: bool) -> None:
    """Refuse a run to which the algorithm objects. Raises `ConfigError` with one line per objection."""
    algorithm = load_plugin("algorithm", run.algorithm, "algorithm")
    assert issubclass(algorithm.cls, Algorithm)
    scaffolds = [load_plugin(kind, choice, path).cls for path, kind, choice in run.plugins() if kind == "scaffold"]
    outline = RunOutline(
        demonstrations=demonstrations,
        resample_even_groups=config.resample_even_groups,
        async_ratio=config.async_ratio,
        agents_inside=all(getattr(cls, "over_http", False) for cls in scaffolds),
    )
    objections = list(algorithm.cls.objections(algorithm.config, outline))
    if objections:
        raise ConfigError("\n".join(objections))


def check_groups(run: RunConfig) -> None:
    """Refuse dynamic sampling (`rl.resample_even_groups`) if every group would be even. Raises `ConfigError`."""
    algorithm: Any = build_driver("algorithm", run.algorithm, DriverContext())
    if algorithm.group_size < 2:
        raise ConfigError(
            "rl.resample_even_groups: with algorithm.group_size=1 the rewards of every group are alike; set a "
            "group_size of 2 or more, or remove rl.resample_even_groups."
        )


@runtime_checkable
class LendsDevices(Protocol):
    """Settings of a cluster that can put engines on the trainer's devices, or such engines once they have started."""

    def objection_to_lending(self, count: int) -> str:
        """Return why so many engines cannot lie there, as a sentence; an empty one if they can."""
        ...


def check_multiplex(run: RunConfig, config: RLConfig) -> None:
    """Refuse more engines on the trainer's devices (`rl.multiplex`) than the section `cluster` has room for; without a
    cluster, the engine says how many it has once it is built (`require_elastic`). Raises `ConfigError`."""
    if not config.multiplex or run.cluster is None:
        return
    settings = load_plugin("cluster", run.cluster, "cluster").config
    if isinstance(settings, LendsDevices) and (objection := settings.objection_to_lending(config.multiplex)):
        raise ConfigError(objection)


def check_policy_to_sample(run: RunConfig, source: Path | None) -> None:
    """Refuse rollouts without training if there is no policy yet. Raises `ConfigError`."""
    if run.model.scratch is not None and source is None and message_engine(run) is None:
        raise ConfigError(
            "model.scratch: a policy made from nothing exists only after training; for '--only rollout' name one with "
            "model.path=FOLDER or '--from RUN', or remove the section (~model.scratch) if the engine needs no model."
        )


def note_short_context(bench: Workbench) -> None:
    """Show a note if the engine ends contexts before the run file does, which would cut rollouts off unnoticed."""
    wanted, most = bench.config.rollout.max_context, bench.engine.max_context
    if "max_context" in bench.config.rollout.model_fields_set and most < wanted:
        bench.progress.note(
            f"rollout.max_context is {wanted}, but the engine takes contexts of {most} tokens, and they end there: "
            "raise engine.max_context, or lower rollout.max_context if that is all the model takes."
        )
