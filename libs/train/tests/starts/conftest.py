"""What the tests of starts by snapshot share: episodes over sandboxes in memory that can be forked.

They fail when a test wants it; with real ones: tests/test_start_states.py.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest
from support.sample_conversation import START, TOOLS

from ale.config.episode import RolloutConfig, SandboxNeeds
from ale.errors import AleError, ConfigError
from ale.messages import Message
from ale.registry.hooks import Hooks
from ale.rollout.episode import Episodes, StageInfo
from ale.rollout.selection import Option, Selection
from ale.session.session import Sessions
from ale.session.tokenizer import byte_tokenizer
from ale.specs.algorithm import RolloutRequest
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.reward import Reward
from ale.specs.sandbox import ExecResult, Sandbox, SandboxSpec
from ale.specs.sandbox_protocols import SandboxStats
from ale.specs.scaffold import ModelSession, Scaffold
from ale.task import Task, TaskTests
from ale.trajectory import Score, Trajectory
from ale_testing.fake_engines import ScriptedEngine
from ale_testing.fake_sandboxes import MemoryProvider, MemorySandbox
from ale_train.starts import ExpertReplay, ExpertStates

TASK = Task(id="t", instruction="do it", tests=TaskTests(command="true"), files={"a": "0"})
WORK = ["put a 1", "put b 2", "cat a", "put a 3", "cat none"]
LIST = "list"
RL = StageInfo("rl", 1, "train", 1.0)


class ForkBox(MemorySandbox):
    """Knows a few commands: `put NAME TEXT`, `cat NAME`, `list`, `count` (never the same), `die`, `stand`."""

    provider: Forks

    async def exec(self, command: str, **options: Any) -> ExecResult:
        self.check()
        await asyncio.sleep(0)
        self.provider.ran.append((self.id, command))
        word, *rest = command.split(" ")
        if word == "put":
            self.files[rest[0]] = rest[1].encode()
            return ExecResult(0, b"", b"", 0.0)
        if word == "cat":
            found = self.files.get(rest[0])
            return ExecResult(int(found is None), found or b"", b"" if found else b"no such file", 0.0)
        if word == "count":
            return ExecResult(0, str(len(self.provider.ran)).encode(), b"", 0.0)
        if word == "die":
            self.dead = self.provider.deaths > 0
            self.provider.deaths -= 1
            self.check()
        if word == "stand":
            await self.provider.stand.wait()
        return ExecResult(0, repr(sorted(self.files.items())).encode(), b"", 0.0)

    async def download(self, path: str, *, max_bytes: int = 1 << 28) -> bytes:
        self.check()
        if path not in self.files:
            raise FileNotFoundError(2, "No such file", path)
        return self.files[path]

    async def stats(self) -> SandboxStats:
        self.check()
        return SandboxStats()

    async def snapshot(self, name: str | None = None) -> str:
        self.check()
        await asyncio.sleep(0)
        if self.provider.no_snapshots:
            raise self.provider.no_snapshots.pop()
        self.provider.made += 1
        name = f"s{self.provider.made}"
        self.provider.kept[name] = dict(self.files)
        return name


class Forks(MemoryProvider):
    """Has snapshots."""

    sandbox_type = box = ForkBox

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, dict[str, bytes]] = {}
        self.ran: list[tuple[str, str]] = []
        self.no_snapshots: list[Exception] = []
        """Errors of the next ones."""
        self.made = 0
        self.deaths = 0
        """How many sandboxes `die`."""
        self.stand = asyncio.Event()

    async def start_sandbox(self, spec: SandboxSpec) -> MemorySandbox:
        if spec.from_snapshot is not None and spec.from_snapshot not in self.kept:
            raise ConfigError("There is no such snapshot.")
        box = await super().start_sandbox(spec)
        box.files = {**self.kept.get(spec.from_snapshot or "", {}), **spec.files}
        return box

    async def snapshots(self) -> list[str]:
        return list(self.kept)

    async def remove_snapshot(self, name: str) -> None:
        self.kept.pop(name, None)


class Hands(Driver, Scaffold):
    """Runs commands until it is told no more. `before` is what it does at the beginning, `after` what it does between
    commands."""

    before = after = "nothing"
    swallows = False
    most = 20

    async def run(self, task: Task, sandbox: Sandbox, session: ModelSession) -> str:
        await self.extra(self.before, sandbox, session)
        history = list(START)
        for _ in range(self.most):
            try:
                reply = (await session.chat(history, TOOLS)).message
            except AleError:
                if self.swallows:
                    return "finish"
                raise
            history.append(reply)
            if not reply.tool_calls:
                return "finish"
            for call in reply.tool_calls:
                done = await sandbox.exec(call.parsed_arguments()["command"])
                history.append(Message("tool", done.output, tool_call_id=call.id))
            await self.extra(self.after, sandbox, session)
        return "finish"

    async def extra(self, what: str, sandbox: Sandbox, session: ModelSession) -> None:
        """What a scaffold may do besides."""
        if what == "upload":
            await sandbox.upload({"notes": b"x"}, mode=0o600)
            assert await sandbox.download("notes") == b"x"
            with pytest.raises(FileNotFoundError):
                await sandbox.download("nothing")
        elif what == "key" or (what == "late key" and session.calls == self.most):  # another one in every session
            with suppress(AleError if self.swallows else ()):
                await sandbox.exec("put key 1", env={"KEY": session.id})
        elif what == "stats":
            await sandbox.stats()
        elif what == "title":
            await session.chat((Message("user", "Make a title."),))


def say(command: str) -> str:
    return f'<tool_call>\n{{"name": "shell", "arguments": {json.dumps({"command": command})}}}\n</tool_call>'


class Fixed(Driver, Reward):
    """Gives every trajectory the same score."""

    async def score(self, task: Task, sandbox: Sandbox, trajectory: Trajectory) -> Score:
        return Score(1.0, True)


class Bench:
    """Episodes over `Forks`, by replay and by snapshot."""

    def __init__(self, states: ExpertStates, told: list[tuple[str, dict[str, Any]]]) -> None:
        self.states, self.told = states, told
        self.provider, self.engine = Forks(), ScriptedEngine()
        self.hands = Hands(PluginConfig(), DriverContext())
        self.hooks = Hooks()

    def episodes(self, **config: object) -> Episodes:
        return Episodes(
            Selection("sandbox", [Option("forks", self.provider)]),  # type: ignore[list-item]
            Selection("scaffold", [Option("hands", self.hands)]),
            Selection("reward", [Option("fixed", Fixed(PluginConfig(), DriverContext()))]),
            Sessions(byte_tokenizer(), self.engine, self.hooks),
            self.hooks,
            RolloutConfig(**{"max_tokens": 200, "max_context": 8000, "max_calls": 20, **config}),  # type: ignore[arg-type]
            SandboxNeeds(),
            {},
        )

    def request(self, expert: Trajectory, start: int, *, fork: bool = True, seed: int = 1) -> RolloutRequest:
        """A rollout behind the expert's first chunks."""
        return RolloutRequest(TASK, "g", seed, ExpertReplay(expert, start, states=self.states if fork else None))

    async def expert(self, commands: list[str] = WORK) -> Trajectory:
        self.engine.texts = [*map(say, commands), "done"]
        made = await self.episodes().run(RolloutRequest(TASK, "g", 0), StageInfo("demonstrations", 0, "train", 1.0))
        assert made.failure is None, made.failure
        self.provider.ran.clear()
        return made

    async def roll(self, expert: Trajectory, start: int, *, fork: bool = True, **config: object) -> Trajectory:
        """A rollout whose policy looks at its sandbox and is done."""
        self.engine.texts += [say(LIST), "mine"]
        return await self.episodes(**config).run(self.request(expert, start, fork=fork), RL)

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [data for told, data in self.told if told == kind]

    async def until_run(self, command: str) -> None:
        """Wait until a sandbox was given this command."""
        for _ in range(10_000):
            if command in self.commands():
                return
            await asyncio.sleep(0)
        raise AssertionError(f"{command} is never run")

    def commands(self) -> list[str]:
        return [command for _, command in self.provider.ran]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """Nothing of it may be left."""
    told: list[tuple[str, dict[str, Any]]] = []
    async with ExpertStates(lambda kind, **data: told.append((kind, data))) as states:
        made = Bench(states, told)
        yield made
    assert made.provider.kept == {}, "every snapshot is removed"
    assert made.provider.alive == set(), "every sandbox is stopped"
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.CRITICAL):
        yield


def essence(trajectory: Trajectory) -> tuple[object, ...]:
    """What training sees of a rollout."""
    observed = tuple((o.chunk, o.tool, o.text, o.exit_code) for o in trajectory.observations)
    return (
        trajectory.sequences,
        trajectory.chunks,
        observed,
        trajectory.ended_by,
        trajectory.failure,
        trajectory.start_chunk,
    )
