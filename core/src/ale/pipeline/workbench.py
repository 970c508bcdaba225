"""Everything that a run has open: drivers, endpoint, store. Opened in one place, closed in reverse order."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ale.capabilities import check_started
from ale.config_base import RULES_KEY, PluginChoice, PluginRules
from ale.endpoint.reply_form import ReplyForm
from ale.endpoint.session import ModelEndpoint
from ale.endpoint.tokenizer import ChatTokenizer, byte_tokenizer
from ale.errors import AleError, ConfigError, PluginError
from ale.hooks import Hooks
from ale.pipeline.progress import Progress
from ale.pipeline.teacher import NoEngine, teacher
from ale.plugins import open_driver
from ale.rollout.baking import Bakery
from ale.rollout.episode import Episodes
from ale.rollout.mix import MixedTasks, Source
from ale.rollout.pool import SandboxPool
from ale.rollout.scheduler import Rollouts
from ale.rollout.selection import Option, Selection
from ale.rollout.states import StartStates
from ale.run_config import RunConfig
from ale.specs.algorithm import Algorithm
from ale.specs.driver import DriverContext
from ale.specs.engine import InferenceEngine, PolicyVersion
from ale.specs.tasks import TaskSource
from ale.specs.trainer import TrainerBackend
from ale.store import RunStore
from ale.task import Task
from ale.trajectory import Trajectory
from ale.validation import named


@dataclass
class Workbench:
    """What the stages work with."""

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
    cpt: Algorithm | None
    sft: tuple[Algorithm, ...]
    """The supervised loss of each stage of the warm start."""
    endpoint: ModelEndpoint
    rollouts: Rollouts
    pools: Mapping[str, SandboxPool]
    """The pool of each sandbox plugin, by the name that the run gives it."""
    seconds: dict[str, float] = field(default_factory=dict)
    evaluations: dict[str, dict[str, Any]] = field(default_factory=dict)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Adds the seconds spent inside to `seconds[stage]`."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.monotonic() - began

    @property
    def backend(self) -> TrainerBackend:
        """The trainer, where the stage cannot do without."""
        assert self.trainer is not None, "checked before the run starts"
        return self.trainer

    async def use_model(self, folder: Path, tokenizer: ChatTokenizer) -> None:
        """Make a model folder the policy of engine and endpoint."""
        await self.engine.load_model(folder, tokenizer)
        self.endpoint.tokenizer = tokenizer

    async def publish(self) -> PolicyVersion:
        """Bring the trainer's weights to the engine, in memory."""
        policy = await self.backend.publish()
        await self.engine.load_weights(policy)
        return policy

    def pool_metrics(self) -> dict[str, float]:
        """What the pools of sandboxes tell, as `pool/<metric>`, or `pool/<plugin>/<metric>` where there are several."""
        path = "pool/{name}/" if len(self.pools) > 1 else "pool/"
        return {
            f"{path.format(name=name)}{metric}": value
            for name, pool in self.pools.items() for metric, value in pool.metrics().items()
        }  # fmt: skip

    def finish_step(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Keep a training step's metrics and tell the observers."""
        self.store.add_metrics(stage, step, metrics)
        self.hooks.call("ale_step_finished", stage=stage, step=step, metrics=metrics)

    def take_tasks(self, split: str) -> Iterator[Task]:
        """Tasks of a split, again from the start when they run out."""
        while True:
            empty = True
            for task in self.tasks_once(split):
                empty = False
                yield task
            if empty:
                other = ", or name another split with eval.split" if split == self.config.eval.split else ""
                raise ConfigError(
                    f"The task source '{self.config.tasks.use}' has no tasks in its split '{split}': give it some with its "
                    f"settings in the section tasks (`ale config describe tasks NAME` lists them){other}."
                )

    def tasks_once(self, split: str) -> Iterator[Task]:
        """The tasks of a split. Raises `PluginError` where the source crashes or yields something else."""
        what = f"tasks: the task source '{self.config.tasks.use}'"
        try:
            for task in self.tasks.tasks(split):
                if not isinstance(task, Task):
                    raise PluginError(f"{what} must yield ale.task.Task objects, not {type(task).__name__}.")
                yield task
        except AleError:
            raise
        except Exception as error:
            raise PluginError(f"{what} crashed in its split '{split}': {named(error)}.") from error


@asynccontextmanager
async def open_workbench(
    config: RunConfig, context: DriverContext, store: RunStore, progress: Progress, *, train: bool
) -> AsyncIterator[Workbench]:
    """Build every driver the run names, start them, and close them whatever happens."""
    hooks, run_id, folder = context.hooks, context.run_id, context.run_dir
    assert folder is not None
    pools: dict[str, SandboxPool] = {}
    async with AsyncExitStack() as stack:

        async def start(kind: str, choice: PluginChoice | None, path: str | None = None) -> Any:
            assert choice is not None, "checked with the configuration"
            driver: Any = await open_driver(stack, kind, choice, context, path or kind)
            check_started(config, path or kind, kind, driver)
            if kind == "sandbox":
                name = choice.use if choice.use not in pools else f"{choice.use}.{len(pools)}"
                driver = pools[name] = await stack.enter_async_context(SandboxPool(driver, config.pool))
            return driver

        async def select(kind: str, section: PluginChoice | PluginRules) -> Selection[Any]:
            if isinstance(section, PluginChoice):
                return Selection(kind, [Option(section.use, await start(kind, section))])
            options: list[Option[Any]] = []
            started: list[tuple[PluginChoice, Any]] = []
            for i, rule in enumerate(section.rules):
                same = PluginChoice(use=rule.use, settings=rule.settings)  # rules that differ in `when` share a driver
                driver = next((found for choice, found in started if choice == same), None)
                if driver is None:
                    driver = await start(kind, same, f"{kind}.{RULES_KEY[kind]}.{i}")
                    started.append((same, driver))
                names = [other.use for other in section.rules]
                name = rule.use if names.count(rule.use) == 1 else f"{rule.use}.{i}"
                options.append(Option(name, driver, rule.when, rule.weight))
            return Selection(kind, options, config.seed)

        async def task_source(section: PluginChoice | PluginRules) -> TaskSource:
            if isinstance(section, PluginChoice):
                source: TaskSource = await start("tasks", section)
                return source
            return MixedTasks([
                Source(rule.use, await start("tasks", rule, f"tasks.mix.{i}"), rule.weight, rule.tags)
                for i, rule in enumerate(section.rules)
            ])  # fmt: skip

        # Cheap drivers first: a mistake in the configuration then shows before a model is loaded.
        tasks = await task_source(config.tasks)
        reward = await select("reward", config.reward)
        scaffold = await select("scaffold", config.scaffold)
        provider = await select("sandbox", config.sandbox)
        algorithm = await start("algorithm", config.algorithm)
        cpt = await start("algorithm", config.cpt.algorithm, "cpt.algorithm") if config.cpt and train else None
        of_stages = config.sft.algorithms() if config.sft and train else ()
        sft = tuple([await start("algorithm", choice, path) for path, choice in of_stages])
        upstream = config.endpoint.upstream
        engine = NoEngine() if upstream is not None or config.engine is None else await start("engine", config.engine)
        trainer = await start("trainer", config.trainer) if config.trainer and train else None
        tokenizer = byte_tokenizer()
        tool_format = await start("tool_format", config.endpoint.tool_format, "endpoint.tool_format")
        endpoint = ModelEndpoint(tokenizer, engine, hooks, ReplyForm(tool_format, config.endpoint.thoughts))
        endpoint.upstream = await stack.enter_async_context(teacher(upstream)) if upstream is not None else None
        served, asked = config.endpoint, any(option.driver.over_http for option in scaffold.options)
        if served.http or served.unix is not None or config.needs.network == "endpoint-only" or asked:
            from ale.endpoint.http import serve

            await stack.enter_async_context(serve(endpoint, served.unix))
        states = None
        if config.rollout.start_states == "snapshot":
            states = await stack.enter_async_context(StartStates(context.event))
        episodes = Episodes(
            provider, scaffold, reward, endpoint, hooks, config.rollout, config.needs, context.labels, Bakery(context.event),
            states,
        )  # fmt: skip

        def finished(trajectory: Trajectory) -> None:
            if trajectory.rejected is None:
                progress.advance()

        rollouts = Rollouts(episodes, store, finished)
        yield Workbench(
            config, run_id, folder, store, hooks, progress, tasks, engine, trainer, algorithm, cpt, sft, endpoint, rollouts,
            pools,
        )  # fmt: skip
