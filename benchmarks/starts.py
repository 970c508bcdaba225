"""Starting behind an expert's chunks: by replay, and as a fork of a state that was kept (`rollout.start_states`).

    python benchmarks/starts.py [--sandbox docker] [--rounds 12]

Milliseconds from the request of a rollout to the first call that is the policy's, for prefixes of 2, 5 and 10 chunks whose commands take
0, 50 and 500 ms each. Each round runs both ways one after the other, so that its ratio compares like with like. `new`: every rollout has
a new sandbox; `used`: one that was reset, as runs do by default, but for forks where one starts in milliseconds (`local`). `walk` is what
making the state took, once; `pays` after how many rollouts from it that is won back.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ale.config_base import PluginChoice
from ale.endpoint.session import ModelEndpoint
from ale.endpoint.tokenizer import byte_tokenizer
from ale.hooks import Hooks
from ale.messages import Message, ToolCall, ToolSpec
from ale.pipeline.teacher import NoEngine
from ale.plugins import build_driver
from ale.rollout.episode import Episodes, Stage
from ale.rollout.pool import SandboxPool
from ale.rollout.selection import Option, Selection
from ale.rollout.states import StartStates
from ale.run_config import PoolConfig, RolloutConfig, SandboxNeeds
from ale.specs.algorithm import RolloutRequest
from ale.specs.driver import DriverContext
from ale.task import Task, TaskTests
from ale.trajectory import Trajectory

CHUNKS, COMMAND_MS = (2, 5, 10), (0, 50, 500)
FILES = {f"data/{i}.txt": f"{i}\n" * 200 for i in range(20)}
TASK = Task(id="starts", instruction="Write files.", tests=TaskTests(command="true"), files=FILES)


@dataclass
class Policy:
    """Says that it is done, and when it was asked first; before, what an expert is to say."""

    commands: Sequence[str] = ()
    asked_at: float = 0.0
    said: int = field(default=0, init=False)

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        self.said += 1
        if self.said <= len(self.commands):
            arguments = json.dumps({"command": self.commands[self.said - 1]})
            return Message("assistant", "", (ToolCall(f"call_{self.said}", "shell", arguments),))
        self.asked_at = time.perf_counter()
        return Message("assistant", "It is done.")


async def expert_of(episodes: Episodes, chunks: int, command_ms: int) -> Trajectory:
    """An expert whose commands write a file each and take so long."""
    wait = f"sleep {command_ms / 1000}; " if command_ms else ""
    policy = Policy([f"{wait}mkdir -p out; echo {i} > out/{i}; cat out/{i}" for i in range(chunks + 1)])
    made = await episodes.run(RolloutRequest(TASK, "g", 0), Stage("demonstrations", 0, "train", 1.0), policy)
    assert made.failure is None, made.failure
    return made


async def handed_over(episodes: Episodes, expert: Trajectory, start: int) -> tuple[float, float]:
    """Milliseconds until the policy is asked, and of them those for the state."""
    policy, began = Policy(), time.perf_counter()
    done = await episodes.run(RolloutRequest(TASK, "g", 1, start, expert), Stage("rl", 1, "train", 1.0), policy)
    assert done.failure is None, done.failure
    assert done.start_chunk == start
    return (policy.asked_at - began) * 1e3, dict(done.timings).get("state", 0.0) * 1e3


async def row(replayed: Episodes, forked: Episodes, kind: str, chunks: int, command_ms: int, rounds: int) -> None:
    """Measure one prefix, and print it."""
    expert = await expert_of(replayed, chunks, command_ms)
    walk = (await handed_over(forked, expert, chunks))[1]
    await handed_over(replayed, expert, chunks)
    pairs = []
    for i in range(rounds):
        ways = (forked, replayed) if i % 2 else (replayed, forked)
        took = [(await handed_over(way, expert, chunks))[0] for way in ways]
        pairs.append((took[i % 2], took[1 - i % 2]))
    replay, fork = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
    low, middle, high = statistics.quantiles([a / b for a, b in pairs], n=4)
    pays = f"{math.ceil(walk / (replay - fork)):>5}" if replay > fork else "never"
    ratio = f"{middle:>6.2f} ({low:.2f}-{high:.2f})"
    print(
        f"{kind:<5}{chunks:>7}{command_ms:>9}{replay:>10.1f}{fork:>10.1f}  {ratio:<22}{walk:>8.0f}{pays:>7}", flush=True
    )


async def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sandbox", default="local", help="a provider with snapshots")
    parser.add_argument("--rounds", type=int, default=12, help="a third of them where commands take 500 ms")
    given = parser.parse_args()
    provider = build_driver("sandbox", PluginChoice(use=given.sandbox), DriverContext())
    print(
        f"{'ms':<5}{'chunks':>7}{'command':>9}{'replay':>10}{'fork':>10}  {'ratio (quartiles)':<22}{'walk':>8}{'pays':>7}"
    )
    async with provider:
        for kind, uses in (("new", 1), ("used", 10_000)):
            async with SandboxPool(provider, PoolConfig(max_uses=uses)) as pool, StartStates() as states:
                scaffold = build_driver(
                    "scaffold", PluginChoice(use="iflow", settings={"max_turns": 20}), DriverContext()
                )
                reward = build_driver("reward", PluginChoice(use="tests"), DriverContext())
                replayed = Episodes(
                    Selection("sandbox", [Option(given.sandbox, pool)]), Selection("scaffold", [Option("iflow", scaffold)]),
                    Selection("reward", [Option("tests", reward)]), ModelEndpoint(byte_tokenizer(), NoEngine(), Hooks()),
                    Hooks(), RolloutConfig(max_calls=20, max_context=100_000), SandboxNeeds(), {},
                )  # fmt: skip
                forked = replace(replayed, states=states)
                for command_ms in COMMAND_MS:
                    for chunks in CHUNKS:
                        rounds = given.rounds if command_ms < 500 else max(3, given.rounds // 3)
                        await row(replayed, forked, kind, chunks, command_ms, rounds)


if __name__ == "__main__":
    asyncio.run(main())
