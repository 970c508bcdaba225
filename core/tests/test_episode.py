"""An episode ends as what it was: a fault is no zero, a spent budget no crash, a diverged replay no sample.

The agent here swallows every error, as programs do that speak HTTP.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from memory_sandboxes import MemoryProvider
from test_dialects import Scripted
from test_prefill import EXPERT, SAYS, START, TOOLS

from ale.endpoint.session import ModelEndpoint
from ale.endpoint.tokenizer import byte_tokenizer
from ale.errors import AleError, EngineError
from ale.hooks import Hooks
from ale.messages import Message
from ale.packing import Credit, pack
from ale.rollout.episode import Episodes, Stage
from ale.rollout.selection import Option, Selection
from ale.run_config import RolloutConfig, SandboxNeeds
from ale.specs.algorithm import RolloutRequest
from ale.specs.driver import DriverContext, PluginConfig
from ale.specs.reward import Reward
from ale.specs.sandbox import Sandbox
from ale.specs.scaffold import ModelSession, Scaffold
from ale.task import Task, TaskTests
from ale.trajectory import Chunk, Score, Trajectory

TASK = Task(id="t", instruction="do it", tests=TaskTests(command="true"))


class Program(Scaffold):
    """Carries calls out until it is told no more; a call that fails is tried `tries` times, and then it ends as if all was well."""

    tries = 2
    title = False
    answers: Sequence[str] = ("out 0", "out 1", "out 2")

    async def run(self, task: Task, sandbox: Sandbox, session: ModelSession) -> str:
        if self.title:
            await session.chat((Message("user", "Make a title."),))
        history, world = list(START), iter(self.answers)
        for _ in range(9):
            reply = None
            for _ in range(self.tries):
                with suppress(AleError):
                    reply = (await session.chat(history, TOOLS)).message
                    break
            if reply is None or not reply.tool_calls:
                break
            history.append(reply)
            history += [Message("tool", next(world), tool_call_id=call.id) for call in reply.tool_calls]
        return "finish"


class Fixed(Reward):
    """Always content."""

    async def score(self, task: Task, sandbox: Sandbox, trajectory: Trajectory) -> Score:
        return Score(1.0, True)


@pytest.fixture
def engine() -> Scripted:
    made = Scripted()
    made.texts = list(SAYS)
    return made


async def roll(engine: Scripted, program: Program | None = None, request: RolloutRequest | None = None, **config: object) -> Trajectory:  # fmt: skip
    none = PluginConfig(), DriverContext()
    episodes = Episodes(
        Selection("sandbox", [Option("memory", MemoryProvider())]),  # type: ignore[list-item]
        Selection("scaffold", [Option("program", program or Program(*none))]),
        Selection("reward", [Option("fixed", Fixed(*none))]),
        ModelEndpoint(byte_tokenizer(), engine, Hooks()), Hooks(),
        RolloutConfig(**{"max_tokens": 200, "max_context": 4000, **config}),  # type: ignore[arg-type]
        SandboxNeeds(), {},
    )  # fmt: skip
    return await episodes.run(request or RolloutRequest(TASK, "g", 1), Stage("rl", 0, "train", 1.0))


async def test_an_agent_that_swallows_a_lost_engine_is_a_failure_and_no_zero(
    engine: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    engine.error = EngineError("The engine is lost.")
    with caplog.at_level(logging.CRITICAL):
        done = await roll(engine)
    assert done.reward is None
    assert done.failure is not None
    assert (done.failure.kind, done.failure.message, done.failure.retryable) == ("engine", "The engine is lost.", True)


async def test_an_engine_that_works_again_is_no_failure(engine: Scripted) -> None:
    failing = [EngineError("busy")]
    sample = engine.generate

    async def generate(request: object) -> object:
        if failing:
            raise failing.pop()
        return await sample(request)  # type: ignore[arg-type]

    engine.generate = generate  # type: ignore[method-assign,assignment]
    done = await roll(engine)
    assert done.failure is None
    assert len(done.chunks) == 4


async def test_an_agent_that_swallows_a_spent_budget_ended_by_it(engine: Scripted) -> None:
    done = await roll(engine, max_calls=2)
    assert (done.ended_by, done.passed, len(done.chunks)) == ("budget", True, 2)


async def test_a_replay_goes_on_with_the_policy(engine: Scripted) -> None:
    engine.texts = ["mine"]
    done = await roll(engine, request=RolloutRequest(TASK, "g", 1, start_chunk=2, expert=EXPERT))
    assert (done.failure, done.start_chunk, done.ended_by) == (None, 2, "finish")
    assert [chunk.sampled for chunk in done.chunks] == [False, False, True]


@pytest.mark.parametrize("tries", [1, 3])
async def test_a_diverged_replay_is_kept_apart(engine: Scripted, tries: int, caplog: pytest.LogCaptureFixture) -> None:
    program = Program(PluginConfig(), DriverContext())
    program.answers, program.tries = ("out 0", "else"), tries
    with caplog.at_level(logging.CRITICAL):
        done = await roll(engine, program, RolloutRequest(TASK, "g", 1, start_chunk=3, expert=EXPERT))
    assert done.failure is not None
    assert (done.failure.kind, done.rejected) == ("replay", "replay failure")
    assert "where it had answered 'out 1'" in done.failure.message


@pytest.mark.parametrize("rule", ["no_tools", "none"])
async def test_side_calls_are_marked_by_the_runs_rule(engine: Scripted, rule: str) -> None:
    engine.texts = ["A title", *SAYS]
    program = Program(PluginConfig(), DriverContext())
    program.title = True
    done = await roll(engine, program, side_calls=rule)
    assert [chunk.side for chunk in done.chunks] == [rule == "no_tools"] + [False] * 4


def test_side_chunks_carry_no_loss_and_are_no_steps() -> None:
    def credit(trajectory: Trajectory, chunk: Chunk, position: int, count: int) -> Credit:
        seen.append((chunk.index, position, count))
        return Credit(1.0, True)

    seen: list[tuple[int, int, int]] = []
    chunks = tuple(replace(chunk, side=chunk.index == 1) for chunk in EXPERT.chunks)
    batch = pack([replace(EXPERT, chunks=chunks)], credit, lambda table, tokens: float(tokens))
    assert seen == [(0, 0, 3), (2, 1, 3), (3, 2, 3)]
    assert batch is not None
    assert batch.normalizer == sum(len(chunks[i]) for i in (0, 2, 3))
