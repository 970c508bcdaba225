"""What a task asks for itself, and an episode in which nobody uses a sandbox."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ale.config.episode import RolloutConfig, SandboxNeeds
from ale.errors import ConfigError, PluginError
from ale.messages import Message
from ale.registry.hooks import Hooks
from ale.rollout.episode import Episodes, StageInfo
from ale.rollout.no_sandbox import NoSandbox, NoSandboxes
from ale.rollout.sandbox_spec import make_spec
from ale.rollout.selection import Option, Selection
from ale.session.session import Sessions
from ale.session.tokenizer import byte_tokenizer
from ale.specs.algorithm import RolloutRequest
from ale.specs.reward import GradedSandbox, Reward
from ale.specs.sandbox import Resources, Sandbox, SandboxSpec
from ale.specs.scaffold import ModelSession, Scaffold
from ale.task import ImageBuild, Task, TaskTests
from ale.trajectory import Score, Trajectory
from ale_testing.fake_engines import ScriptedEngine
from ale_testing.fake_sandboxes import MemoryProvider

ALL = frozenset({"limits", "network_none", "network_endpoint", "egress_policy", "network_full", "builds", "gpu"})


class Able(MemoryProvider):
    capabilities = ALL

    async def image_from(self, build: ImageBuild) -> str:
        return f"built-{len(build.dockerfile)}"


class Unable(MemoryProvider):
    capabilities = frozenset({"network_none"})


def spec_of(task: Task, provider: Any = Able, **needs: Any) -> SandboxSpec:
    return asyncio.run(make_spec(task, provider(), SandboxNeeds(**needs), {}))


def task(**more: Any) -> Task:
    return Task(id="t", instruction="do it", **more)


def test_files_hold_bytes_and_survive_json() -> None:
    made = task(files={"a": b"\xff\x00", "b": "é"}, tests=TaskTests(command="true", files={"c": b"\x01"}))
    assert Task.model_validate_json(made.model_dump_json()) == made
    assert spec_of(made).files == {"a": b"\xff\x00", "b": "é".encode()}


def test_limits_of_the_task_replace_those_of_the_run_key_by_key() -> None:
    spec = spec_of(task(resources=Resources(memory_mib=64)))
    assert (spec.resources.memory_mib, spec.resources.pids) == (64, 128)
    assert spec_of(task(user="root", workdir="/app")).workdir == "/app"
    with pytest.raises(ConfigError, match=r"the task t asks for limits of its own \(memory_mib\).*'limits'"):
        spec_of(task(resources=Resources(memory_mib=64)), Unable)


@pytest.mark.parametrize(
    ("run", "own", "gets"),
    [
        ("none", None, "none"),
        ("none", "none", "none"),
        ("full", "none", "endpoint-only"),
        ("full", "endpoint-only", "endpoint-only"),
        ("endpoint-only", "none", "endpoint-only"),
        ("full", None, "full"),
    ],
)
def test_a_task_may_ask_for_less_network_than_the_run_gives(run: str, own: Any, gets: str) -> None:
    assert spec_of(task(network=own), network=run).network == gets


def test_a_task_that_asks_for_more_network_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^needs.network: the task t asks for 'full', and the run gives 'none'"):
        spec_of(task(network="full"))
    narrow: dict[str, Any] = {"network": "allow", "allow": ("pypi.org:443",)}
    with pytest.raises(ConfigError, match=r"with \['evil.org:443'\]"):
        spec_of(task(network="allow", allow=("evil.org:443",)), **narrow)
    assert spec_of(task(**narrow), **narrow).allow == ("pypi.org:443",)
    assert spec_of(task(**narrow), network="full").network == "allow"


def test_an_image_to_build_needs_a_provider_that_builds() -> None:
    build = ImageBuild(dockerfile="FROM x")
    assert spec_of(task(build=build)).image == "built-6"
    with pytest.raises(ConfigError, match=r"an image built from a Dockerfile.*Unable lacks it"):
        spec_of(task(build=build), Unable)


@pytest.mark.parametrize(
    ("given_", "sentence"),
    [
        ({"image": "a", "build": {"dockerfile": "FROM x"}}, "either 'image' or 'build', not both"),
        ({"allow": ["pypi.org:443"]}, "give both or neither"),
        ({"network": "allow", "allow": ["pypi.org"]}, "is no host and port"),
        ({"workdir": "app"}, "absolute path"),
    ],
)
def test_a_task_whose_parts_do_not_fit_is_refused(given_: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        task(**given_)


class Talk(Scaffold):
    """Sends the task's messages once."""

    @classmethod
    def uses_sandbox(cls, config: Any) -> bool:
        return False

    async def run(self, task: Task, sandbox: Sandbox, session: ModelSession) -> str:
        reply = await session.chat((*task.messages, Message("user", task.instruction)))
        session.observe(reply.chunk, "step", {}, "seen", None, 0.0, reward=0.5)
        return "finish"


class Judge(Reward):
    """Answers as it is told; it looks into the sandbox if `looks`."""

    def __init__(self, score: Score, looks: str = "") -> None:
        self.answer, self.looks, self.seen = score, looks, ""

    async def score(self, task: Task, sandbox: GradedSandbox, trajectory: Trajectory) -> Score:
        if self.looks == "exec":
            await sandbox.exec("true")
        if self.looks == "another":
            async with sandbox.open_another() as other:
                self.seen = f"{other.id} {other.spec.network} {sorted(other.spec.files)}"
        return self.answer


async def roll(reward: Reward, provider: Any = None, made: Task | None = None, **config: Any) -> Trajectory:
    engine = ScriptedEngine()
    engine.texts = ["hello"]
    episodes = Episodes(
        Selection("sandbox", [Option("none", provider or NoSandboxes())]),
        Selection("scaffold", [Option("talk", Talk())]),
        Selection("reward", [Option("judge", reward)]),
        Sessions(byte_tokenizer(), engine, Hooks()),
        Hooks(),
        RolloutConfig(**{"max_tokens": 200, "max_context": 4000, **config}),
        SandboxNeeds(),
        {},
    )
    return await episodes.run(RolloutRequest(made or task(), "g", 1), StageInfo("rl", 0, "train", 1.0))


async def test_an_episode_without_a_sandbox_has_messages_and_rewards_of_steps() -> None:
    done = await roll(
        Judge(Score(0.5, True, by_chunk=(0.5,), parts={"a": 1.0})), made=task(messages=[Message("system", "Be.")])
    )
    assert done.failure is None
    assert [m.role for m in done.sequences[0].messages] == ["system", "user", "assistant"]
    assert done.observations[0].reward == 0.5
    assert done.reward is not None
    assert (done.reward.by_chunk, done.reward.parts) == ((0.5,), {"a": 1.0})


@pytest.mark.parametrize("looks", ["exec", "another"])
async def test_who_uses_a_sandbox_where_there_is_none_is_told(looks: str, caplog: pytest.LogCaptureFixture) -> None:
    done = await roll(Judge(Score(1.0, True), looks))
    if looks == "exec":
        assert done.failure is not None
        assert "this run has none: the scaffold and the reward say that they use none" in done.failure.message
    else:
        assert done.failure is None, "nothing is started, and nothing in it was used"


async def test_a_reward_may_grade_in_a_sandbox_apart_as_the_task_was() -> None:
    provider = MemoryProvider()
    reward = Judge(Score(1.0, True), "another")
    done = await roll(reward, provider, task(files={"a": "x"}))
    assert done.failure is None
    assert reward.seen.endswith("none ['a']")
    assert await provider.list() == [], "both are stopped"


@pytest.mark.parametrize("by_chunk", [(1.0, 2.0), (float("nan"),)])
async def test_rewards_of_steps_must_be_one_finite_number_a_chunk(by_chunk: tuple[float, ...]) -> None:
    done = await roll(Judge(Score(0.5, True, by_chunk=by_chunk)))
    assert done.failure is not None
    assert "Score.by_chunk must hold a finite number for each of the 1 chunks" in done.failure.message


async def test_the_parts_of_a_score_must_be_finite() -> None:
    done = await roll(Judge(Score(0.5, True, parts={"style": float("inf")})))
    assert done.failure is not None
    assert "must answer with finite numbers" in done.failure.message


@given(own=st.floats(1, 500), ours=st.none() | st.floats(1, 500))
def test_the_agent_has_the_tasks_seconds_within_those_that_the_run_file_sets(own: float, ours: float | None) -> None:
    config = RolloutConfig() if ours is None else RolloutConfig(timeout_s=ours)
    episodes: Any = object.__new__(Episodes)
    object.__setattr__(episodes, "config", config)
    assert episodes._agent_seconds(task(timeout_s=own)) == (own if ours is None else min(own, ours))
    assert episodes._agent_seconds(task()) == config.timeout_s


async def test_the_stand_in_lists_nothing_and_stops_nothing() -> None:
    provider = NoSandboxes()
    async with await provider.start_sandbox(SandboxSpec()) as box:
        assert isinstance(box, NoSandbox)
        for call in (box.upload({}), box.download("x"), box.kill_agent_processes()):
            with pytest.raises(PluginError, match="this run has none"):
                await call
    await provider.remove(box.id)
    assert await provider.list() == []


def test_a_plain_sandbox_type_is_enough_for_a_reward() -> None:
    assert issubclass(GradedSandbox, Sandbox)
    assert GradedSandbox.open_another.__annotations__["return"] == f"{AbstractAsyncContextManager.__name__}[Sandbox]"
