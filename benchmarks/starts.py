"""Compares two ways to start after an expert's chunks: replay, and a fork of a kept state (`start_states` of `ipa`).

    python benchmarks/starts.py [--sandbox docker] [--rounds 12]

It measures milliseconds from a rollout's request to the policy's first call, for prefixes of 2, 5 and 10 chunks whose
commands take 0, 50 and 500 ms each. Each round runs both ways one after the other, so that its ratio is taken under the
same conditions. `new`: every rollout has a new sandbox; `used`: a reset one, as runs do by default, except forks that
start in milliseconds (`local`). `make` is the time to make the state, once; `pays` is the number of rollouts from it
after which that time is saved."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ale.config.episode import RolloutConfig, SandboxNeeds
from ale.config.pool import PoolConfig
from ale.errors import EngineError
from ale.messages import Message, ToolCall, ToolSpec
from ale.registry.drivers import build_driver
from ale.registry.hooks import Hooks
from ale.rollout.episode import Episodes, StageInfo
from ale.rollout.sandbox_pool.pool import SandboxPool
from ale.rollout.selection import Option, Selection
from ale.session.session import Sessions
from ale.session.tokenizer import byte_tokenizer
from ale.specs.algorithm import RolloutRequest
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale.specs.start import Demonstration, Opening, Reply, Start, StartContext
from ale.task import Task, TaskTests
from ale.trajectory import Trajectory
from ale_testing.fake_engines import CannedEngine
from ale_train.starts import ExpertReplay, ExpertStates

CHUNKS, COMMAND_MS = (2, 5, 10), (0, 50, 500)
FILES = {f"data/{i}.txt": f"{i}\n" * 200 for i in range(20)}
TASK = Task(id="starts", instruction="Write files.", tests=TaskTests(command="true"), files=FILES)


@dataclass
class Policy:
    """A scripted policy: it plays the expert's replies, then ends, and records when it was first asked."""

    commands: Sequence[str] = ()
    asked_at: float = 0.0
    calls: int = field(default=0, init=False)

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Reply:
        self.calls += 1
        if self.calls <= len(self.commands):
            arguments = json.dumps({"command": self.commands[self.calls - 1]})
            return Reply(Message("assistant", "", (ToolCall(f"call_{self.calls}", "shell", arguments),)))
        self.asked_at = time.perf_counter()
        return Reply(Message("assistant", "It is done."))


@dataclass(frozen=True)
class ScriptedAfter(Start):
    """Wraps another start; after it, a scripted policy answers instead of the engine."""

    first: ExpertReplay
    policy: Policy

    def open(self, context: StartContext) -> Opening:
        opening = self.first.open(context)
        replay = opening.respond

        async def respond(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Reply | None:
            return await replay(messages, tools) or await self.policy(messages, tools)

        opening.respond = respond  # type: ignore[method-assign]
        return opening


async def make_expert(episodes: Episodes, chunks: int, command_ms: int) -> Trajectory:
    """Make an expert each of whose commands writes a file and takes `command_ms`."""
    wait = f"sleep {command_ms / 1000}; " if command_ms else ""
    policy = Policy([f"{wait}mkdir -p out; echo {i} > out/{i}; cat out/{i}" for i in range(chunks + 1)])
    made = await episodes.run(
        RolloutRequest(TASK, "g", 0, Demonstration(lambda: policy)), StageInfo("demonstrations", 0, "train", 1.0)
    )
    assert made.failure is None, made.failure
    return made


async def measure_start(episodes: Episodes, replay: ExpertReplay) -> tuple[float, float]:
    """Measure the milliseconds until the policy is asked, and the part of them for the state."""
    policy, began = Policy(), time.perf_counter()
    done = await episodes.run(
        RolloutRequest(TASK, "g", 1, ScriptedAfter(replay, policy)), StageInfo("rl", 1, "train", 1.0)
    )
    assert done.failure is None, done.failure
    return (policy.asked_at - began) * 1e3, dict(done.timings).get("state", 0.0) * 1e3


async def row(episodes: Episodes, states: ExpertStates, kind: str, chunks: int, command_ms: int, rounds: int) -> None:
    """Measure one prefix, and print it."""
    expert = await make_expert(episodes, chunks, command_ms)
    replayed, forked = ExpertReplay(expert, chunks), ExpertReplay(expert, chunks, states=states)
    make = (await measure_start(episodes, forked))[1]
    await measure_start(episodes, replayed)
    pairs = []
    for i in range(rounds):
        ways = (forked, replayed) if i % 2 else (replayed, forked)
        took = [(await measure_start(episodes, way))[0] for way in ways]
        pairs.append((took[i % 2], took[1 - i % 2]))
    replay, fork = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
    low, middle, high = statistics.quantiles([a / b for a, b in pairs], n=4)
    pays = f"{math.ceil(make / (replay - fork)):>5}" if replay > fork else "never"
    ratio = f"{middle:>6.2f} ({low:.2f}-{high:.2f})"
    print(
        f"{kind:<5}{chunks:>7}{command_ms:>9}{replay:>10.1f}{fork:>10.1f}  {ratio:<22}{make:>8.0f}{pays:>7}", flush=True
    )


async def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sandbox", default="local", help="a provider with snapshots")
    parser.add_argument("--rounds", type=int, default=12, help="a third of them where commands take 500 ms")
    given = parser.parse_args()
    provider = build_driver("sandbox", PluginChoice(use=given.sandbox), DriverContext())
    print(
        f"{'ms':<5}{'chunks':>7}{'command':>9}{'replay':>10}{'fork':>10}  "
        f"{'ratio (quartiles)':<22}{'make':>8}{'pays':>7}"
    )
    async with provider:
        for kind, uses in (("new", 1), ("used", 10_000)):
            async with SandboxPool(provider, PoolConfig(max_uses=uses)) as pool, ExpertStates() as states:
                scaffold = build_driver(
                    "scaffold", PluginChoice(use="iflow", settings={"max_turns": 20}), DriverContext()
                )
                reward = build_driver("reward", PluginChoice(use="tests"), DriverContext())
                episodes = Episodes(
                    Selection("sandbox", [Option(given.sandbox, pool)]),
                    Selection("scaffold", [Option("iflow", scaffold)]),
                    Selection("reward", [Option("tests", reward)]),
                    Sessions(byte_tokenizer(), CannedEngine([EngineError("Nothing samples.")]), Hooks()),
                    Hooks(),
                    RolloutConfig(max_calls=20, max_context=100_000),
                    SandboxNeeds(),
                    {},
                )
                for command_ms in COMMAND_MS:
                    for chunks in CHUNKS:
                        rounds = given.rounds if command_ms < 500 else max(3, given.rounds // 3)
                        await row(episodes, states, kind, chunks, command_ms, rounds)


if __name__ == "__main__":
    asyncio.run(main())
