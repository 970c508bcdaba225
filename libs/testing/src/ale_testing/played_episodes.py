"""Whole episodes of the plugin under test, as a run makes them: by `ale.rollout.episode.Episodes`.

1. The scaffold or the reward under test plays with the reward or the scaffold that is tested besides; where there is
   none, with a plain one: `Asks` sends the task and takes the answer, `Takes` gives every episode a 0.
2. The policy is an engine with answers of a list (`fake_engines`), or the task source's demonstrator.
3. Where one of the two uses a sandbox it is a real one: of the plugin `local` if that is installed, or else a folder in
   which commands run. Where none does, there is none, and a call of it is the plugin's fault.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from ale.config.episode import RolloutConfig, SandboxNeeds
from ale.messages import Message
from ale.registry.drivers import build_driver
from ale.registry.hooks import Hooks
from ale.registry.installed import list_plugins
from ale.rollout.episode import Episodes, StageInfo
from ale.rollout.no_sandbox import NoSandboxes
from ale.rollout.selection import Option, Selection
from ale.session.session import Sessions
from ale.specs.algorithm import RolloutRequest
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale.specs.reward import GradedSandbox, Reward
from ale.specs.sandbox import Sandbox, SandboxProvider
from ale.specs.scaffold import ModelSession, Scaffold
from ale.specs.start import Demonstration, Responder, Start
from ale.task import TRAIN, Task
from ale.trajectory import Score, Trajectory
from ale_testing.fake_engines import TOKENIZER, CannedEngine
from ale_testing.fake_sandboxes import FolderProvider
from ale_testing.plugin_under_test import Subject

ANSWERS = ("I do not know.", "", "42")


class Asks(Scaffold):
    """Sends the task and takes the answer."""

    @classmethod
    def uses_sandbox(cls, config: Any) -> bool:
        """It asks only the model."""
        return False

    async def run(self, task: Task, sandbox: Sandbox, session: ModelSession) -> str:
        await session.chat([*task.messages, Message("user", task.instruction)])
        return "finish"


class Takes(Reward):
    """Gives every episode the same score."""

    @classmethod
    def uses_sandbox(cls, config: Any) -> bool:
        """It looks at nothing."""
        return False

    async def score(self, task: Task, sandbox: GradedSandbox, trajectory: Trajectory) -> Score:
        return Score(0.0, False)


class Table:
    """Where the episodes of one plugin are played; `open_table` makes one."""

    def __init__(self, provider: SandboxProvider, scaffold: Scaffold, reward: Reward, needs: SandboxNeeds) -> None:
        self._provider, self._scaffold, self._reward, self._needs = provider, scaffold, reward, needs

    async def play(self, task: Task, answers: Sequence[str] = ANSWERS, start: Start | None = None) -> Trajectory:
        """One episode. The policy gives the answers in turn, then the last one again and again."""
        episodes = Episodes(
            Selection("sandbox", [Option("kit", self._provider)]),
            Selection("scaffold", [Option("kit", self._scaffold)]),
            Selection("reward", [Option("kit", self._reward)]),
            Sessions(TOKENIZER, CannedEngine(answers), Hooks()),
            Hooks(),
            RolloutConfig(max_tokens=4096, max_context=1 << 17, max_calls=12, timeout_s=60),
            self._needs,
            {"run": "conformance"},
        )
        return await episodes.run(RolloutRequest(task, "kit", 1, start), StageInfo("rl", 1, TRAIN, 1.0))


@asynccontextmanager
async def open_table(subject: Subject) -> AsyncIterator[Table]:
    """Start what the episodes of a scaffold or a reward need; all of it ends with the block."""
    async with AsyncExitStack() as stack:

        async def enter(part: Subject | None, plain: Any) -> Any:
            return plain if part is None else await stack.enter_async_context(part.build())

        parts = {kind: subject if subject.kind == kind else subject.another(kind) for kind in ("scaffold", "reward")}
        provider: Any = NoSandboxes()
        needs = SandboxNeeds()
        if any(part is not None and part.uses_sandbox for part in parts.values()):
            provider = await stack.enter_async_context(sandbox_provider(parts["scaffold"], subject.context()))
            needs = SandboxNeeds(network="none" if "network_none" in provider.capabilities else "full")
        yield Table(provider, await enter(parts["scaffold"], Asks()), await enter(parts["reward"], Takes()), needs)


def sandbox_provider(scaffold: Subject | None, context: DriverContext) -> Any:
    """A provider that works on any machine, not started yet. An agent that is a program of this machine needs its
    files, which are in a folder's sandbox alone."""
    is_program = scaffold is not None and scaffold.over_http
    if not is_program and any(info.name == "local" and info.status == "ok" for info in list_plugins("sandbox")):
        return build_driver("sandbox", PluginChoice(use="local"), context)
    return FolderProvider()


@asynccontextmanager
async def demonstrations(subject: Subject, tasks: Sequence[Task]) -> AsyncIterator[list[tuple[Task, Start]]]:
    """The tasks of `--ale-tasks` that its source can demonstrate, each with the start that does so."""
    if subject.source is None:
        yield []
        return
    async with subject.source.cls(subject.source.config, subject.context()) as driver:
        source: Any = driver

        def show(task: Task, seed: int) -> Responder | None:
            shown: Responder | None = source.demonstrator(task, seed)
            return shown

        starts = [(task, Demonstration(partial(show, task, seed))) for seed, task in enumerate(tasks)]
        yield [(task, start) for task, start in starts if start.demonstrator() is not None]


def playable(tasks: Sequence[Task]) -> list[Task]:
    """The tasks that a sandbox of any machine can be made for."""
    return [task for task in tasks if task.image is None and task.build is None]
