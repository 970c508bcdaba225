"""The workbench of a run: its open drivers, model sessions and store. `open_workbench` opens them, and closes them in
reverse order."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ale.config.capabilities import Requirements
from ale.config.episode import EpisodeConfig
from ale.errors import ConfigError, PluginError
from ale.registry.hooks import Hooks
from ale.registry.validation import read_all
from ale.rollout.open_episodes import OpenEpisodes, open_episodes, start_driver
from ale.rollout.scheduler import Rollouts
from ale.session.session import Sessions
from ale.session.tokenizer import ChatTokenizer
from ale.specs.algorithm import Algorithm
from ale.specs.choice import Mix, PluginChoice
from ale.specs.cluster import Cluster, EnginePlan
from ale.specs.driver import DriverContext
from ale.specs.engine import FolderTicket, InferenceEngine, MessageEngine, PolicyVersion
from ale.specs.sandbox_protocols import ReportsMetrics
from ale.specs.tasks import TaskSource
from ale.specs.trainer import TrainerBackend
from ale.store.run_store import RunStore
from ale.task import Task
from ale_train.config.run import RunConfig
from ale_train.models.export import after_stage, export_model
from ale_train.task_mixture import MixedSource, MixedTasks
from ale_train.workbench.progress import Progress
from ale_train.workbench.prompt_lengths import PromptLengths


@dataclass
class Workbench:
    """The objects that the stages work with."""

    config: RunConfig
    required: Requirements
    context: DriverContext
    """The context that each driver got."""
    store: RunStore
    hooks: Hooks
    progress: Progress
    tasks: TaskSource
    engine: InferenceEngine
    trainer: TrainerBackend | None
    algorithm: Algorithm
    stage_algorithms: Mapping[str, Algorithm]
    """The algorithms of the stages before reinforcement learning, by their paths in the run file."""
    rollouts: Rollouts
    pools: Mapping[str, ReportsMetrics]
    """The pool of each sandbox plugin, by its name in the run; empty if the run has no pool."""
    prompts: PromptLengths | None = None
    """What tasks pass through on their way into the run, once the policy is known (`tasks.overlong`)."""
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
    def run_id(self) -> str:
        """The id of the run."""
        return self.context.run_id

    @property
    def folder(self) -> Path:
        """The run folder."""
        assert self.context.run_dir is not None
        return self.context.run_dir

    @property
    def sessions(self) -> Sessions:
        """The model sessions of the run's episodes."""
        return self.rollouts.episodes.sessions

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

    async def save(self, stage: str, checkpoint: Path | None = None) -> None:
        """Save the policy as `model/<stage>` of the run folder, and note its version in the store. It is that of
        `checkpoint`, or of a new one, `stages/<stage>`, which has the trainer's state too."""
        folder = self.folder / "model" / stage
        if checkpoint is None:
            checkpoint = after_stage(self.folder, stage)
            await self.backend.save(checkpoint)
        base = (self.config.model.path or self.folder / "model" / "initial", self.config.model.revision)
        await asyncio.to_thread(export_model, checkpoint, folder, base)
        self.policy_folder = folder
        self.store.set_meta({f"saved.{stage}": str(self.engine.version)})

    async def restore(self, folder: Path, version: int) -> None:
        """Go on with the policy that the trainer saved in a folder as this version, in trainer and engine."""
        with self.stopwatch("model"):
            tokenizer = ChatTokenizer.load(folder)  # first, so that a folder without one changes nothing
            await self.backend.restore(folder)
            await self.use_model(folder, tokenizer)
            await self.engine.load_weights(PolicyVersion(version, FolderTicket(folder)))

    def forget_evaluations_after(self, step: int) -> None:
        """Forget the evaluations of later steps, which a run that goes on from this one makes again."""
        self.evaluations = {label: figures for label, figures in self.evaluations.items() if figures["step"] <= step}

    def pool_metrics(self) -> dict[str, float]:
        """Return the sandbox pools' metrics, as `pool/<metric>`, or `pool/<plugin>/<metric>` if there are several."""
        path = "pool/{name}/" if len(self.pools) > 1 else "pool/"
        return {
            f"{path.format(name=name)}{metric}": value
            for name, pool in self.pools.items()
            for metric, value in pool.metrics().items()
        }

    def resource_metrics(self) -> dict[str, float]:
        """Return the metrics of the sandbox pools as `pool/<metric>`, and those of the engine as `engine/<metric>`."""
        return self.pool_metrics() | {f"engine/{name}": value for name, value in self.engine.metrics().items()}

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
        """Yield the tasks of a split that have room in the context, once that is known. Raises `PluginError` if the
        source crashes or yields something else, `ConfigError` if no task has room."""
        tasks = read_tasks(self.tasks, split, f"tasks: the task source '{self.config.tasks.use}'")
        yield from self.keep_fitting(split, tasks)

    def keep_fitting(self, split: str, tasks: Iterator[Task]) -> Iterator[Task]:
        """Yield the tasks that have room in the context, once that is known."""
        yield from tasks if self.prompts is None else self.prompts.keep(split, tasks)


def read_tasks(source: TaskSource, split: str, what: str) -> Iterator[Task]:
    """Yield the tasks of a source's split. Raises `PluginError`, which begins with `what`, if the source crashes or
    yields something else."""
    for task in read_all(f"{what} crashed in its split '{split}'", lambda: source.tasks(split)):
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


async def open_task_source(
    stack: AsyncExitStack, section: PluginChoice | Mix, required: Requirements, context: DriverContext
) -> TaskSource:
    """Return the task source of a run, started; several under `tasks.mix` become one. Raises `AleError`."""
    if isinstance(section, PluginChoice):
        source: TaskSource = await start_driver(stack, required, context, "tasks", section)
        return source
    sources = []
    for i, rule in enumerate(section.rules):
        started = await start_driver(stack, required, context, "tasks", rule, f"tasks.mix.{i}")
        sources.append(MixedSource(rule.label, started, rule.weight, rule.tags))
    return MixedTasks(sources)


@asynccontextmanager
async def open_workbench(
    config: RunConfig,
    required: Requirements,
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
    assert context.run_dir is not None
    async with AsyncExitStack() as stack:

        async def start(kind: str, choice: PluginChoice, path: str = "") -> Any:
            return await start_driver(stack, required, context, kind, choice, path)

        # Cheap drivers come first, so that a mistake in the configuration shows before a model is loaded.
        tasks = await open_task_source(stack, config.tasks, required, context)
        algorithm = await start("algorithm", config.algorithm)
        of_stages = config.stage_algorithms().items() if train else ()
        stage_algorithms = {path: await start("algorithm", choice, path) for path, choice in of_stages}
        cluster: Cluster[EpisodeConfig, OpenEpisodes] | None = (
            await start("cluster", config.cluster) if config.cluster and engine is None else None
        )
        if cluster is not None:
            engine = await cluster.start_engine(plan_engine(config, required, train=train))
        elif engine is None:
            engine = await start("engine", config.engine)
        assert engine is not None
        opened = await open_episodes(stack, required, context, hooks, engine)
        if cluster is not None:
            opened = await cluster.place_episodes(config, opened)
            context = replace(context, ranks=cluster.ranks)
        trainer = await start("trainer", config.trainer) if config.trainer and train else None
        yield Workbench(
            config=config,
            required=required,
            context=context,
            store=store,
            hooks=hooks,
            progress=progress,
            tasks=tasks,
            engine=engine,
            trainer=trainer,
            algorithm=algorithm,
            stage_algorithms=stage_algorithms,
            rollouts=Rollouts(opened.episodes, store, progress.advance),
            pools=opened.pools,
        )


def plan_engine(config: RunConfig, required: Requirements, *, train: bool) -> EnginePlan:
    """Return what a run needs from its cluster's engines; without training, no rank takes room beside them."""
    beside_trainer = config.trainer is not None and train
    return EnginePlan(
        config.engine,
        partial(required.check_started, "engine", "engine"),
        beside_trainer=beside_trainer,
        multiplexed=config.rl.multiplex if config.rl is not None and beside_trainer else 0,
    )
