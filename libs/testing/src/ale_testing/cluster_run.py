"""A run on the cluster under test, through real parts, as `ale_train.workbench.workbench` opens one.

1. The parts are ours: sandboxes of the plugin `local` without isolation, the agent `iflow`, the reward `tests`, a pool.
   `pip install 'ale-core[quickstart]'` brings them.
2. The engine `scripted` has each agent run the file `work.sh` of its task, then finish. So the task alone decides what
   an episode does, and it does the same wherever it is made.
3. Processes and files are looked for on this machine: the nodes of the cluster are here.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ale.config.capabilities import Requirements
from ale.errors import ConfigError
from ale.registry.drivers import open_driver
from ale.registry.hooks import Hooks
from ale.registry.validation import validate
from ale.rollout.episode import Episodes, StageInfo
from ale.rollout.open_episodes import OpenEpisodes, open_episodes
from ale.session.tokenizer import ChatTokenizer, byte_tokenizer
from ale.specs.algorithm import RolloutRequest
from ale.specs.engine import InferenceEngine
from ale.specs.events import hookimpl
from ale.task import TRAIN, Task
from ale.trajectory import Trajectory
from ale_testing import processes
from ale_testing.async_tests import patience_s
from ale_testing.plugin_under_test import Subject
from ale_train.config.run import RunConfig
from ale_train.workbench.channel import RunChannel
from ale_train.workbench.workbench import plan_engine

STAGE = StageInfo("rl", 1, TRAIN, 1.0)
WORK = '<tool_call>\n{"name": "shell", "arguments": {"command": "sh work.sh"}}\n</tool_call>'
FINISH = '<tool_call>\n{"name": "finish", "arguments": {}}\n</tool_call>'
LONG_S = 900.0
"""No episode is stopped for its time: what ends it is the test."""
SECTIONS: Mapping[str, Any] = {
    "name": "kit",
    "tasks": "bash",
    "sandbox": {"use": "local", "isolation": "none"},
    "needs": {"network": "full"},
    "scaffold": {"use": "iflow", "command_timeout_s": LONG_S},
    "engine": {"use": "scripted", "answers": [WORK, FINISH]},
    "trainer": None,
    "rollout": {"concurrency": 8, "max_tokens": 512, "max_context": 1 << 14, "timeout_s": LONG_S},
}
"""The run file; its other sections have their defaults."""


@dataclass(eq=False)
class Witness:
    """An observer of the run: the ids of episodes, once for each sandbox and for each model call that it is told of."""

    sandboxes: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    @hookimpl
    def ale_sandbox_started(self, episode_id: str) -> None:
        """Note it."""
        self.sandboxes.append(episode_id)

    @hookimpl
    def ale_model_called(self, session_id: str) -> None:
        """Note it."""
        self.calls.append(session_id)


@dataclass(frozen=True)
class ClusterRun:
    """What the run has of its cluster; `open_run` makes one."""

    cluster: Any
    engine: InferenceEngine
    episodes: Episodes
    pools: Mapping[str, Any]
    witness: Witness

    async def play(self, task: Task, seed: int = 1, group: str = "kit") -> Trajectory:
        """Make one episode."""
        return await self.episodes.run(RolloutRequest(task, group, seed), STAGE)


@asynccontextmanager
async def open_run(subject: Subject, model: Path | None = None, **sections: Any) -> AsyncIterator[ClusterRun]:
    """Open a run on the cluster, with the model of a folder, and close it with the block. `sections` replace those of
    the run file."""
    config, witness = make_config(subject, **sections), Witness()
    hooks = Hooks([("kit", witness)])
    context = replace(subject.context(), channel=RunChannel(str, hooks))
    async with AsyncExitStack() as stack:
        cluster: Any = await stack.enter_async_context(subject.cls(subject.config, context))
        required = Requirements(config)
        engine = await cluster.start_engine(plan_engine(config, required, train=True))
        assert isinstance(engine, InferenceEngine), f"start_engine() must return an InferenceEngine, not {engine!r:.80}"
        here = await open_episodes(stack, required, context, hooks, engine)
        placed = await cluster.place_episodes(config, here)
        assert isinstance(placed, OpenEpisodes), f"place_episodes() must return OpenEpisodes, not {placed!r:.80}"
        episodes, pools = placed.episodes, placed.pools
        assert isinstance(episodes, Episodes), f"place_episodes() must return Episodes, not {episodes!r:.80}"
        assert set(pools) == set(here.pools), f"place_episodes() must return the pools {[*here.pools]}, not {[*pools]}"
        ranks = cluster.ranks
        assert ranks is None or callable(getattr(ranks, "start", None)), f"ranks must be None or start ranks: {ranks!r}"
        tokenizer = byte_tokenizer() if model is None else ChatTokenizer.load(model)
        await engine.load_model(model, tokenizer)
        episodes.sessions.tokenizer = tokenizer
        yield ClusterRun(cluster, engine, episodes, pools, witness)


async def play_here(subject: Subject, task: Task) -> Trajectory:
    """Make the same episode in a run without a cluster."""
    config, context = make_config(subject), subject.context()
    async with AsyncExitStack() as stack:
        engine: Any = await open_driver(stack, "engine", config.engine, context)
        await engine.load_model(None, byte_tokenizer())
        opened = await open_episodes(stack, Requirements(config), context, Hooks(), engine)
        return await opened.episodes.run(RolloutRequest(task, "kit", 1), STAGE)


def make_config(subject: Subject, **sections: Any) -> RunConfig:
    """The run file, as it is loaded. Raises `AssertionError` if a plugin of it is not installed."""
    settings = subject.config.model_dump(mode="json", exclude_unset=True)
    try:
        return validate(RunConfig, {**SECTIONS, "cluster": {"use": subject.name, **settings}, **sections})
    except ConfigError as error:
        raise AssertionError(f"the kit's run needs what `pip install 'ale-core[quickstart]'` brings: {error}") from None


async def until(holds: Callable[[], object], why: str) -> None:
    """Wait for what must come to hold. Raises `AssertionError` with the contract's rule."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s()
    while not holds():
        assert loop.time() < deadline, f"{why} (it was waited for {patience_s():g} s)"
        await asyncio.sleep(0.05)


async def until_ended(pids: set[int], why: str) -> None:
    """Wait until all of these processes have ended. Raises `AssertionError`, which names some that have not."""
    try:
        await until(lambda: not processes.running(pids), why)
    except AssertionError as error:
        left = [" ".join(processes.command_line(pid))[:200] for pid in sorted(processes.running(pids))]
        raise AssertionError(f"{error}; there are {left[:5]}") from None


def folders_of(pids: set[int]) -> Collection[Path]:
    """The folders `/tmp/ale-*` that the command lines of these processes name."""
    lines = " ".join(word for pid in pids for word in processes.command_line(pid))
    return {Path(name) for name in re.findall(r"/tmp/ale-[\w.-]+", lines)}


def temporary_entries() -> set[str]:
    """What lies in the temporary folder of the kit, and in the folders there."""
    root = Path(tempfile.gettempdir())
    found = set(os.listdir(root))
    for name in [*found]:
        with suppress(OSError):  # it is a file, or has just been removed
            found |= {f"{name}/{inner}" for inner in os.listdir(root / name)}
    return found
