"""Everything that a run has open: drivers, model sessions, store. One place opens it and closes it in reverse order."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ale.config.run import MIXTURE, RunConfig
from ale.errors import ConfigError, PluginError
from ale.pipeline.progress import Progress
from ale.registry.hooks import Hooks
from ale.registry.validation import as_plugin_error
from ale.rollout.open_episodes import open_episodes, start_driver
from ale.rollout.scheduler import Rollouts
from ale.session.session import Sessions
from ale.session.tokenizer import ChatTokenizer
from ale.specs.algorithm import Algorithm
from ale.specs.choice import Mix, PluginChoice
from ale.specs.cluster import Cluster
from ale.specs.driver import DriverContext
from ale.specs.engine import FolderTicket, InferenceEngine, MessageEngine, PolicyVersion
from ale.specs.package_sections import PooledProvider
from ale.specs.tasks import MixedSource, TaskSource
from ale.specs.trainer import TrainerBackend
from ale.store.run_store import RunStore
from ale.task import Task


@dataclass
class Workbench:
    """The objects that the stages work with."""

    config: RunConfig
    run_id: str
    folder: Path
    store: RunStore
    hooks: Hooks
    progress: Progress
    tasks: TaskSource
    engine: InferenceEngine
    trainer: TrainerBackend | None
    algorithm: Algorithm
    stage_algorithms: Mapping[str, Algorithm]
    """The algorithms of the stages before reinforcement learning, by their paths in the run file."""
    sessions: Sessions
    rollouts: Rollouts
    pools: Mapping[str, PooledProvider]
    """The pool of each sandbox plugin, by its name in the run; empty if the run has no pool."""
    policy_folder: Path | None = None
    """The model folder that the policy was last loaded from or saved to."""
    seconds: dict[str, float] = field(default_factory=dict)
    evaluations: dict[str, dict[str, Any]] = field(default_factory=dict)

    @contextmanager
    def stopwatch(self, stage: str) -> Iterator[None]:
        """Add the seconds spent inside the block to `seconds[stage]`."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.monotonic() - began

    @property
    def backend(self) -> TrainerBackend:
        """The trainer, for a stage that needs one."""
        assert self.trainer is not None, "checked before the run starts"
        return self.trainer

    @property
    def samples_policy(self) -> bool:
        """Whether the engine samples the policy's tokens; otherwise it answers with messages of another model."""
        return not isinstance(self.engine, MessageEngine)

    async def use_model(self, folder: Path, tokenizer: ChatTokenizer) -> None:
        """Load a model folder as the policy of engine and sessions."""
        await self.engine.load_model(folder, tokenizer)
        self.sessions.tokenizer = tokenizer
        self.policy_folder = folder

    async def load_policy(self, folder: Path, *, train: bool) -> None:
        """Load a model folder as the policy everywhere; with `train`, the trainer loads it too."""
        with self.stopwatch("model"):
            await self.use_model(folder, ChatTokenizer.load(folder))
            if train:
                await self.backend.load(folder)

    async def save(self, stage: str) -> None:
        """Save the policy as `model/<stage>` of the run folder, and note its version in the store."""
        folder = self.folder / "model" / stage
        await self.backend.save(folder)
        self.policy_folder = folder
        self.store.set_meta({f"saved.{stage}": str(self.engine.version)})

    async def restore(self, folder: Path, version: int) -> None:
        """Go on with the policy that the trainer saved in a folder as this version, in trainer and engine."""
        with self.stopwatch("model"):
            tokenizer = ChatTokenizer.load(folder)  # first, so that a folder without one changes nothing
            await self.backend.restore(folder)
            await self.use_model(folder, tokenizer)
            await self.engine.load_weights(PolicyVersion(version, FolderTicket(folder)))

    def pool_metrics(self) -> dict[str, float]:
        """Return the sandbox pools' metrics, as `pool/<metric>`, or `pool/<plugin>/<metric>` if there are several."""
        path = "pool/{name}/" if len(self.pools) > 1 else "pool/"
        return {
            f"{path.format(name=name)}{metric}": value
            for name, pool in self.pools.items()
            for metric, value in pool.metrics().items()
        }

    def finish_step(
        self, stage: str, step: int, metrics: Mapping[str, float], trained: Iterable[tuple[str, int, int]] = ()
    ) -> None:
        """Store the metrics of a step, with those that observers add, and what it has trained on (see
        `RunStore.add_metrics`), and report the metrics to the observers."""
        metrics = dict(metrics)
        if self.hooks.has_implementation("ale_add_metrics"):
            of_the_step = ("stage = ? AND step = ? AND rejected IS NULL", (stage, step))
            self.hooks.call(
                "ale_add_metrics",
                lambda added: metrics.update(_check_added(added, metrics)),
                stage=stage,
                step=step,
                trajectories=tuple(self.store.trajectories(*of_the_step)),
                metrics=MappingProxyType(metrics),
            )
        self.store.add_metrics(stage, step, metrics, trained)
        self.hooks.call("ale_step_finished", stage=stage, step=step, metrics=metrics)

    async def evaluate(self, label: str, step: int) -> None:
        """Judge the policy as it is now, if the run has evaluations; see `EvaluationSection.evaluate`."""
        if self.config.eval is not None:
            await self.config.eval.evaluate(self, label, step)

    def take_tasks(self, split: str) -> Iterator[Task]:
        """Yield tasks of a split, from the first again after the last."""
        while True:
            empty = True
            for task in self.tasks_once(split):
                empty = False
                yield task
            if empty:
                raise ConfigError(
                    f"The task source '{self.config.tasks.use}' has no tasks in its split '{split}': give it some with "
                    "its settings in the section tasks (`ale config describe tasks NAME` lists them)."
                )

    def tasks_once(self, split: str) -> Iterator[Task]:
        """Yield the tasks of a split. Raises `PluginError` if the source crashes or yields something else."""
        what = f"tasks: the task source '{self.config.tasks.use}'"
        with as_plugin_error(f"{what} crashed in its split '{split}'"):
            for task in self.tasks.tasks(split):
                if not isinstance(task, Task):
                    raise PluginError(f"{what} must yield ale.task.Task objects, not {type(task).__name__}.")
                yield task


def _check_added(added: Any, metrics: Mapping[str, float]) -> dict[str, float]:
    """Return what an observer adds to a step's metrics. Raises `ValueError` if something is wrong in it."""
    if not isinstance(added, Mapping | None):
        raise ValueError(f"it must return a mapping of names to numbers, or None, not {type(added).__name__}")
    for name, value in (added or {}).items():
        if name in metrics or not isinstance(name, str):
            raise ValueError(f"it adds the metric {name!r}, which is there already or is no text; give it another name")
        if not (isinstance(value, Real) and math.isfinite(value)):
            raise ValueError(f"it adds the metric '{name}' = {value!r}, which is no finite number; leave it out")
    return {name: float(value) for name, value in (added or {}).items()}


@asynccontextmanager
async def open_workbench(
    config: RunConfig,
    context: DriverContext,
    hooks: Hooks,
    store: RunStore,
    progress: Progress,
    *,
    train: bool,
    engine: InferenceEngine | None = None,
) -> AsyncIterator[Workbench]:
    """Build every driver that the run names, start them, and close them whatever happens. `engine` takes the place of
    the run's."""
    run_id, folder = context.run_id, context.run_dir
    assert folder is not None
    async with AsyncExitStack() as stack:

        async def start(kind: str, choice: PluginChoice, path: str = "") -> Any:
            return await start_driver(stack, config, context, kind, choice, path)

        async def task_source(section: PluginChoice | Mix) -> TaskSource:
            if isinstance(section, PluginChoice):
                source: TaskSource = await start("tasks", section)
                return source
            sources = []
            for i, rule in enumerate(section.rules):
                started = await start("tasks", rule, f"tasks.mix.{i}")
                sources.append(MixedSource(rule.use, started, rule.weight, rule.tags))
            mixture: TaskSource = MIXTURE.require()(sources)
            return mixture

        # Cheap drivers come first, so that a mistake in the configuration shows before a model is loaded.
        tasks = await task_source(config.tasks)
        algorithm = await start("algorithm", config.algorithm)
        of_stages = {path: choice for section in config.stages.values() for path, choice in section.algorithms()}
        stage_algorithms = {path: await start("algorithm", choice, path) for path, choice in of_stages.items() if train}
        cluster: Cluster | None = await start("cluster", config.cluster) if config.cluster and engine is None else None
        if engine is None:
            placed = config if train else config.model_copy(update={"trainer": None})  # idle ranks take no room
            engine = await (cluster.start_engine(placed) if cluster else start("engine", config.engine))
        assert engine is not None
        episodes, pools = await open_episodes(stack, config, context, hooks, engine)
        if cluster is not None:
            episodes, pools = await cluster.place_episodes(config, episodes, pools)
            context = replace(context, ranks=cluster.ranks)
        trainer = await start("trainer", config.trainer) if config.trainer and train else None
        rollouts = Rollouts(episodes, store, progress.advance)
        of_the_run = config, run_id, folder, store, hooks, progress
        drivers = tasks, engine, trainer, algorithm, stage_algorithms
        yield Workbench(*of_the_run, *drivers, episodes.sessions, rollouts, pools)
