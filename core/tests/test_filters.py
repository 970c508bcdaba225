"""What is kept out of training, why, and how that is counted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.sample_conversation import SAYS
from test_episode import Fixed, Program

from ale.config.episode import RolloutConfig, SandboxNeeds
from ale.errors import ApiError, EngineError, SandboxError, TaskError
from ale.registry.hooks import Hooks
from ale.rollout.episode import Episodes, StageInfo
from ale.rollout.filters import DIVERGED, Filter, Rejection
from ale.rollout.scheduler import Rollouts
from ale.rollout.selection import Option, Selection
from ale.session.session import Sessions
from ale.session.tokenizer import byte_tokenizer
from ale.specs.algorithm import RolloutRequest
from ale.specs.driver import DriverContext, PluginConfig
from ale.specs.events import hookimpl
from ale.specs.sandbox import Sandbox
from ale.store.run_store import RunStore
from ale.task import Task, TaskTests
from ale.trajectory import Failure, Score, Trajectory
from ale_testing.fake_engines import ScriptedEngine
from ale_testing.fake_sandboxes import MemoryProvider

TASK = Task(id="t", instruction="do it", tests=TaskTests(command="true"))
BARE = Trajectory("r", "t", "train", "rl", 1, "g", 0, 0, (), ())
STAGE = StageInfo("rl", 1, "train", 1.0)
Make = Callable[..., Trajectory]


def judge(**config: object) -> Callable[[Trajectory], str | None]:
    made = Filter(RolloutConfig(**config), Hooks())  # type: ignore[arg-type]
    return lambda t: (r := made.rejection(t)) and r.kind


def test_a_failing_agent_stays(trajectory: Make) -> None:
    assert judge()(trajectory(reward=0.0)) is None


def test_what_has_no_score_says_whose_fault_that_is(trajectory: Make) -> None:
    reject, lost = judge(), Failure("sandbox", "gone", True)
    assert reject(replace(trajectory(), reward=None)) == "no reward"
    assert reject(replace(trajectory(), reward=None, failure=lost)) == "sandbox failure"
    scoring = (("start", 0.1), ("act", 1.0))
    assert reject(replace(trajectory(), reward=None, failure=lost, timings=scoring)) == "no reward"
    stopping = (*scoring, ("score", 0.1))
    assert reject(replace(trajectory(), reward=None, failure=lost, timings=stopping)) == "sandbox failure"
    assert reject(replace(trajectory(), chunks=())) == "no model call"


class Looking(Program):
    """Its tool `look` is said to be deterministic."""

    deterministic_tools = frozenset({"look"})

    async def run(self, task: Task, sandbox: Sandbox, session: object) -> str:
        ended = await super().run(task, sandbox, session)  # type: ignore[arg-type]
        session.observe(0, "look", {}, next(self.world), 0, 0.0)  # type: ignore[attr-defined]
        return ended

    world: Iterator[str] = iter(())


class Failing(Fixed):
    """Scores, once its faults are over."""

    faults: list[Exception]

    async def score(self, task: Task, sandbox: Sandbox, trajectory: Trajectory) -> Score:
        if self.faults:
            raise self.faults.pop(0)
        return Score(0.0, False)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with RunStore.create(tmp_path) as opened:
        yield opened


def rollouts(
    store: RunStore,
    engine: ScriptedEngine,
    program: Program,
    reward: Fixed,
    hooks: Hooks | None = None,
    **config: object,
) -> Rollouts:
    hooks = hooks or Hooks()
    episodes = Episodes(
        Selection("sandbox", [Option("memory", MemoryProvider())]),  # type: ignore[list-item]
        Selection("scaffold", [Option("program", program)]),
        Selection("reward", [Option("fixed", reward)]),
        Sessions(byte_tokenizer(), engine, hooks),
        hooks,
        RolloutConfig(**{"max_tokens": 200, "max_context": 4000, "concurrency": 1, **config}),  # type: ignore[arg-type]
        SandboxNeeds(),
        {},
    )
    return Rollouts(episodes, store)


@pytest.fixture
def engine() -> ScriptedEngine:
    made = ScriptedEngine()
    made.texts = list(SAYS) * 40
    return made


NONE = PluginConfig(), DriverContext()


async def test_a_reward_that_cannot_be_computed_is_made_anew_and_never_a_zero(
    store: RunStore, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    reward = Failing(*NONE)
    reward.faults = [SandboxError("gone"), TaskError("no pytest here"), RuntimeError("a bug")] + [TaskError("x")] * 3
    made = rollouts(store, engine, Program(*NONE), reward, max_resamples=2)
    with caplog.at_level(logging.CRITICAL):
        done = await made.run([RolloutRequest(TASK, "a", 1), RolloutRequest(TASK, "b", 2)], STAGE)
        reward.faults = []
        more = await made.run([RolloutRequest(TASK, "c", 3)], STAGE)
    assert done == []
    assert [(t.reward and t.reward.value, t.rejected) for t in more] == [(0.0, None)], "a failed test is one"
    kept = list(store.trajectories("rejected IS NOT NULL"))
    assert {(t.rejected, t.reward) for t in kept} == {("no reward", None)}
    assert [t.rejected_because for t in kept][:2] == ["gone", "no pytest here"]
    assert {t.failure.kind for t in kept if t.failure} == {"sandbox", "task", "plugin"}
    metrics = made.metrics("rl")
    assert metrics == {"rejected": 6 / 7, "rejected/no_reward": 6 / 7, "resampled": 4.0, "unfilled": 2.0}
    assert made.metrics("rl")["rejected"] == 0, "each step is told once"


async def test_what_requests_were_given_up_for_is_known_by_group(store: RunStore, engine: ScriptedEngine) -> None:
    made = rollouts(store, engine, Program(*NONE), Fixed(*NONE), max_resamples=1)
    kinds = {
        "a": [DIVERGED] * 4,
        "b": [DIVERGED, "no reward"],
        "c": ["no reward", DIVERGED],
        "d": [DIVERGED],
    }
    made.judge = lambda t: Rejection(kind := kinds[t.group].pop(0), kind) if kinds[t.group] else None
    groups = ["a", "a", "b", "c", "d"]
    done = await made.run([RolloutRequest(TASK, group, i) for i, group in enumerate(groups)], STAGE)
    assert [t.group for t in done] == ["d"], "at the second try"
    counts = {group: dict(kinds) for group, kinds in made.given_up.items()}
    assert counts == {"a": {DIVERGED: 2}, "b": {"no reward": 1}, "c": {DIVERGED: 1}}, (
        "what the last try was given up for"
    )


async def test_a_service_that_is_away_has_a_reason_of_its_own(
    store: RunStore, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    sample, faults = engine.generate, [ApiError("The upstream answers 503."), EngineError("lost")]

    async def generate(request: object) -> object:
        if faults:
            raise faults.pop(0)
        return await sample(request)  # type: ignore[arg-type]

    engine.generate = generate  # type: ignore[method-assign,assignment]
    program = Program(*NONE)
    program.tries = 1
    made = rollouts(store, engine, program, Fixed(*NONE))
    with caplog.at_level(logging.CRITICAL):
        (done,) = await made.run([RolloutRequest(TASK, "a", 1)], STAGE)
    assert done.passed
    assert [(t.rejected, t.rejected_because) for t in store.trajectories("rejected IS NOT NULL")] == [
        ("api failure", "The upstream answers 503."),
        ("engine failure", "lost"),
    ]
    metrics = made.metrics("rl")
    assert (metrics["rejected/api_failure"], metrics["rejected/engine_failure"]) == (1 / 3, 1 / 3)
    assert (metrics["resampled"], metrics["unfilled"]) == (2.0, 0.0)


async def test_a_tool_that_its_scaffold_vouches_for_is_watched(store: RunStore, engine: ScriptedEngine) -> None:
    program = Looking(*NONE)
    program.world = iter(["1", "1", "2", "2"])
    made = rollouts(store, engine, program, Fixed(*NONE))
    done = await made.run([RolloutRequest(TASK, f"g{i}", i) for i in range(3)], STAGE)
    assert len(done) == 3
    (odd,) = store.trajectories("rejected IS NOT NULL")
    assert odd.rejected == "unreliable tool"
    assert "answered '2'" in odd.rejected_because
    assert odd.reward is not None, "what it would have been worth is kept"
    assert [(lost.reason, lost.count) for lost in store.lost(9)] == [("unreliable tool", 1)]


async def test_a_veto_keeps_its_words_and_is_counted_as_one(store: RunStore, engine: ScriptedEngine) -> None:
    class Watch:
        @hookimpl
        def ale_filter_trajectory(self, trajectory: Trajectory) -> str:
            return f"not {trajectory.id}"

    hooks = Hooks()
    hooks.register("watch", Watch())
    made = rollouts(store, engine, Program(*NONE), Fixed(*NONE), hooks, max_resamples=1)
    assert await made.run([RolloutRequest(TASK, "a", 1)], STAGE) == []
    assert all(t.rejected == f"not {t.id}" for t in store.trajectories())
    assert made.metrics("rl")["rejected/vetoed"] == 1.0
