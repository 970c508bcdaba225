"""Episodes of environments without a run: the tests' own policy answers, and rewards of steps are summed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ale.config.episode import RolloutConfig, SandboxNeeds
from ale.messages import Message, ToolSpec
from ale.registry.hooks import Hooks
from ale.rollout.episode import Episodes, StageInfo
from ale.rollout.no_sandbox import NoSandboxes
from ale.rollout.selection import Option, Selection
from ale.session.session import Sessions
from ale.specs.algorithm import RolloutRequest
from ale.specs.driver import DriverContext
from ale.specs.start import Demonstration, Reply, Start
from ale.task import TRAIN, Task
from ale.trajectory import Trajectory
from ale_env_loop import EnvScaffold, EnvTasks
from ale_rewards.steps_reward import StepsReward
from ale_testing.fake_engines import TOKENIZER, CannedEngine

WORLDS = Path(__file__).with_name("worlds.py")
Policy = Callable[[str], str]
"""From the last message to an answer."""


def children() -> set[int]:
    """The processes of this process."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


def group_members(leader: int) -> list[int]:
    """The living processes of a process group."""
    alive = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, _, group = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:3]
        except OSError:
            continue
        if int(group) == leader and state != "Z":
            alive.append(int(entry.name))
    return alive


async def until(holds: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait until something comes to hold."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110  # of another process
            await asyncio.sleep(0.02)


class Table:
    """Where episodes are played."""

    def __init__(self, **settings: Any) -> None:
        self.scaffold = EnvScaffold(EnvScaffold.Config(**settings), DriverContext())
        self.reward = StepsReward(StepsReward.Config(), DriverContext())

    def episodes(self, answers: Sequence[str] = ("0",), **config: Any) -> Episodes:
        """What all episodes share; a policy without a start gives these answers."""
        settings = {"max_tokens": 2000, "max_context": 100_000, "max_calls": 100, **config}
        return Episodes(
            Selection("sandbox", [Option("none", NoSandboxes())]),
            Selection("scaffold", [Option("env", self.scaffold)]),
            Selection("reward", [Option("steps", self.reward)]),
            Sessions(TOKENIZER, CannedEngine(answers), Hooks()),
            Hooks(),
            RolloutConfig(**settings),
            SandboxNeeds(),
            {},
        )

    async def play(self, task: Task, policy: Policy | Sequence[str] | Start, **config: Any) -> Trajectory:
        """One episode; a list of answers ends with its last one, again and again."""
        if isinstance(policy, Start):
            return await self.roll(task, policy, **config)
        if not callable(policy):
            return await self.roll(task, None, policy, **config)
        answer: Policy = policy

        async def respond(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Reply:
            return Reply(Message("assistant", answer(messages[-1].content)))

        return await self.roll(task, Demonstration(lambda: respond), **config)

    async def roll(self, task: Task, start: Start | None, answers: Sequence[str] = ("0",), **config: Any) -> Trajectory:
        """One episode from a start."""
        stage = StageInfo("rl", 1, TRAIN, 1.0)
        return await self.episodes(answers, **config).run(RolloutRequest(task, "g", 1, start), stage)


def world(name: str, **settings: Any) -> EnvTasks:
    """A task source of an environment in `worlds.py`."""
    return source(f"{WORLDS}:{name}", **settings)


def source(env: str, **settings: Any) -> EnvTasks:
    """A task source."""
    return EnvTasks(EnvTasks.Config(env=env, **settings), DriverContext())


def first(tasks: EnvTasks, n: int = 1, split: str = TRAIN) -> list[Task]:
    """The first tasks of a source."""
    found = list(tasks.tasks(split))[:n]
    assert len(found) == n
    return found
