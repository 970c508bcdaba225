"""An episode ends as what it was: a fault is no zero, a spent budget no crash, a diverged start no sample.

The agent here swallows every error, as programs do that speak HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from support.sample_conversation import EXPERT, SAYS, START, TOOLS

from ale.config.episode import RolloutConfig, SandboxNeeds
from ale.errors import AleError, EngineError, StartDiverged
from ale.messages import Message, ToolCall, ToolSpec
from ale.registry.hooks import Hooks
from ale.rollout.episode import Episodes, StageInfo
from ale.rollout.selection import Option, Selection
from ale.session.session import Sessions
from ale.session.tokenizer import byte_tokenizer
from ale.specs.algorithm import RolloutRequest
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.reward import Reward
from ale.specs.sandbox import Sandbox, SandboxSpec
from ale.specs.scaffold import ModelSession, Scaffold
from ale.specs.start import Opening, Reply, Start, StartContext
from ale.task import Task, TaskTests
from ale.trajectory import Chunk, Score, Trajectory
from ale_testing.fake_engines import ScriptedEngine
from ale_testing.fake_sandboxes import MemoryProvider
from ale_train.batches import Credit, pack

TASK = Task(id="t", instruction="do it", tests=TaskTests(command="true"))


class Program(Driver, Scaffold):
    """Carries calls out until it is told no more; a call that fails is tried `tries` times, and then it ends as if all
    was well."""

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


class Fixed(Driver, Reward):
    """Always content."""

    async def score(self, task: Task, sandbox: Sandbox, trajectory: Trajectory) -> Score:
        return Score(1.0, True)


@pytest.fixture
def engine() -> ScriptedEngine:
    made = ScriptedEngine()
    made.texts = list(SAYS)
    return made


async def roll(
    engine: ScriptedEngine,
    program: Program | None = None,
    request: RolloutRequest | None = None,
    reward: Reward | None = None,
    provider: MemoryProvider | None = None,
    **config: object,
) -> Trajectory:
    none = PluginConfig(), DriverContext()
    episodes = Episodes(
        Selection("sandbox", [Option("memory", provider or MemoryProvider())]),  # type: ignore[list-item]
        Selection("scaffold", [Option("program", program or Program(*none))]),
        Selection("reward", [Option("fixed", reward or Fixed(*none))]),
        Sessions(byte_tokenizer(), engine, Hooks()),
        Hooks(),
        RolloutConfig(**{"max_tokens": 200, "max_context": 4000, **config}),  # type: ignore[arg-type]
        SandboxNeeds(),
        {},
    )
    return await episodes.run(request or RolloutRequest(TASK, "g", 1), StageInfo("rl", 0, "train", 1.0))


async def test_an_agent_that_swallows_a_lost_engine_is_a_failure_and_no_zero(
    engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.error = EngineError("The engine is lost.")
    with caplog.at_level(logging.CRITICAL):
        done = await roll(engine)
    assert done.reward is None
    assert done.failure is not None
    assert (done.failure.kind, done.failure.message, done.failure.retryable) == ("engine", "The engine is lost.", True)


async def test_an_engine_that_cancels_a_call_by_itself_is_a_failure_that_is_tried_again(engine: ScriptedEngine) -> None:
    async def generate(request: object) -> object:
        raise asyncio.CancelledError

    engine.generate = generate  # type: ignore[method-assign,assignment]
    done = await roll(engine)
    assert done.failure is not None
    assert (done.failure.kind, done.failure.retryable) == ("engine", True)


async def test_an_engine_that_works_again_is_no_failure(engine: ScriptedEngine) -> None:
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


async def test_an_agent_that_swallows_a_spent_budget_ended_by_it(engine: ScriptedEngine) -> None:
    done = await roll(engine, max_calls=2)
    assert (done.ended_by, done.passed, len(done.chunks)) == ("budget", True, 2)


class ScriptedStart(Start):
    """Answers the first calls with what it was given; it has diverged where a call is not the one after its last."""

    def __init__(self, *texts: str) -> None:
        self.chunks = len(texts)
        self.texts = texts

    def open(self, context: StartContext) -> Opening:
        given = self

        class Answers(Opening):
            done = 0
            prepared = wrapped = False

            @asynccontextmanager
            async def prepare(self, spec: SandboxSpec) -> AsyncIterator[SandboxSpec]:
                self.prepared = True
                yield spec.model_copy(update={"env": {"PREPARED": context.task.id}})

            def wrap(self, sandbox: Sandbox) -> Sandbox:
                assert sandbox.spec.env == {"PREPARED": "t"}
                self.wrapped = True
                return sandbox

            async def respond(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Reply | None:
                if "else" in messages[-1].content:
                    raise StartDiverged("The environment answered something else.")
                self.done += 1
                if self.done > len(given.texts):
                    return None
                call = ToolCall(f"g{self.done}", "shell", given.texts[self.done - 1])
                return Reply(Message("assistant", "", (call,)))

            def check(self) -> None:
                assert self.prepared
                assert self.wrapped
                if self.done <= len(given.texts):
                    raise StartDiverged("The policy was never asked.")

        return Answers()


async def test_a_start_prepares_the_sandbox_and_answers_until_the_policy_does(engine: ScriptedEngine) -> None:
    engine.texts = ["mine"]
    done = await roll(
        engine, request=RolloutRequest(TASK, "g", 1, ScriptedStart('{"command": "a"}', '{"command": "b"}'))
    )
    assert (done.failure, done.start_chunk, done.ended_by) == (None, 2, "finish")
    assert [chunk.sampled for chunk in done.chunks] == [False, False, True]
    assert "state" in dict(done.timings)


@pytest.mark.parametrize("tries", [1, 3])
async def test_a_start_that_diverged_is_kept_apart(
    engine: ScriptedEngine, tries: int, caplog: pytest.LogCaptureFixture
) -> None:
    program = Program(PluginConfig(), DriverContext())
    program.answers, program.tries = ("out 0", "else"), tries
    with caplog.at_level(logging.CRITICAL):
        done = await roll(engine, program, RolloutRequest(TASK, "g", 1, ScriptedStart(*["{}"] * 3)))
    assert done.failure is not None
    assert (done.failure.kind, done.rejected) == ("replay", "replay failure")
    assert done.failure.message == "The environment answered something else."


async def test_a_rollout_whose_policy_was_never_asked_is_no_sample(
    engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL):
        done = await roll(engine, request=RolloutRequest(TASK, "g", 1, ScriptedStart(*["{}"] * 3)), max_calls=2)
    assert done.failure is not None
    assert (done.failure.kind, done.failure.message) == ("replay", "The policy was never asked.")


async def test_a_start_that_crashes_is_a_failure_that_says_so(
    engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Opening):
        @asynccontextmanager
        async def prepare(self, spec: SandboxSpec) -> AsyncIterator[SandboxSpec]:
            raise KeyError("state")
            yield spec

    class Crashes(Start):
        def open(self, context: StartContext) -> Opening:
            return Broken()

    with caplog.at_level(logging.CRITICAL):
        done = await roll(engine, request=RolloutRequest(TASK, "g", 1, Crashes()))
    assert done.failure is not None
    assert (done.failure.kind, "The start of the rollout crashed: KeyError" in done.failure.message) == ("plugin", True)


@pytest.mark.parametrize("rule", ["no_tools", "none"])
async def test_side_calls_are_marked_by_the_runs_rule(engine: ScriptedEngine, rule: str) -> None:
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
    batch = pack([replace(EXPERT, chunks=chunks)], credit)
    assert seen == [(0, 0, 3), (2, 1, 3), (3, 2, 3)]
    assert batch is not None
    assert batch.normalizer == sum(len(chunks[i]) for i in (0, 2, 3))


class Stray(BaseException):
    """As libraries have them."""


def end_somehow(how: str) -> None:
    errors = {"cancelled": asyncio.CancelledError(), "exits": SystemExit(3), "closed": GeneratorExit(), "own": Stray()}
    if how == "cancels itself":
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
    else:
        raise errors[how]


STRAY = ("cancelled", "cancels itself", "exits", "closed", "own")


@pytest.mark.parametrize("how", STRAY)
@pytest.mark.parametrize("where", ["scaffold", "reward"])
async def test_an_episode_fails_whatever_ends_its_plugins_and_the_run_goes_on(
    engine: ScriptedEngine, how: str, where: str
) -> None:
    class Ends(Program):
        async def run(self, task: Task, sandbox: Sandbox, session: ModelSession) -> str:
            end_somehow(how)
            return "finish"

    class EndsScoring(Fixed):
        async def score(self, task: Task, sandbox: Sandbox, trajectory: Trajectory) -> Score:
            end_somehow(how)
            return Score(1.0, True)

    none = PluginConfig(), DriverContext()
    plugins = {"program": Ends(*none)} if where == "scaffold" else {"reward": EndsScoring(*none)}
    trajectory = await roll(engine, **plugins)  # type: ignore[arg-type]
    assert trajectory.failure is not None
    assert trajectory.failure.kind == ("agent" if where == "scaffold" else "plugin")
    assert trajectory.reward is None


@pytest.mark.parametrize("how", ["cancelled", "exits", "closed", "own"])
@pytest.mark.parametrize("where", ["open", "prepare", "respond", "start", "stop"])
async def test_a_start_or_a_sandbox_that_ends_like_that_fails_its_episode_too(
    engine: ScriptedEngine, how: str, where: str
) -> None:
    class EndsOpening(Opening):
        async def respond(self, messages: object, tools: object) -> Reply | None:
            if where == "respond":
                end_somehow(how)
            return None

        @asynccontextmanager
        async def prepare(self, spec: SandboxSpec) -> AsyncIterator[SandboxSpec]:
            if where == "prepare":
                end_somehow(how)
            yield spec

    class Ends(Start):
        def open(self, context: StartContext) -> Opening:
            if where == "open":
                end_somehow(how)
            return EndsOpening()

    class EndsStarting(MemoryProvider):
        async def start_sandbox(self, spec: SandboxSpec) -> Any:
            if where == "start":
                end_somehow(how)
            sandbox = await super().start_sandbox(spec)
            if where == "stop":
                sandbox.stop = stop
            return sandbox

    async def stop() -> None:
        end_somehow(how)

    request = RolloutRequest(TASK, "g", 1, start=Ends())
    trajectory = await roll(engine, request=request, provider=EndsStarting())
    assert trajectory.failure is not None


async def test_each_episode_has_its_own_copy_of_a_tasks_metadata(engine: ScriptedEngine) -> None:
    class Counts(Fixed):
        async def score(self, task: Task, sandbox: Sandbox, trajectory: Trajectory) -> Score:
            task.metadata["info"]["n"] = task.metadata["info"].get("n", 0) + 1
            return Score(task.metadata["info"]["n"], True)

    task = TASK.model_copy(update={"metadata": {"info": {}}})
    reward = Counts(PluginConfig(), DriverContext())
    values = []
    for seed in range(3):
        engine.texts = list(SAYS)
        trajectory = await roll(engine, request=RolloutRequest(task, "g", seed), reward=reward)
        assert trajectory.reward is not None
        values.append(trajectory.reward.value)
    assert values == [1, 1, 1]
    assert task.metadata == {"info": {}}


async def test_cancelling_an_episode_cancels_it_whatever_its_agent_does_then(engine: ScriptedEngine) -> None:
    began = asyncio.Event()

    class Swallows(Program):
        async def run(self, task: Task, sandbox: Sandbox, session: ModelSession) -> str:
            began.set()
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
            return "finish"

    episode = asyncio.create_task(roll(engine, Swallows(PluginConfig(), DriverContext())))
    await began.wait()
    episode.cancel()
    with pytest.raises(asyncio.CancelledError):
        await episode
