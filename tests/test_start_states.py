"""The state after an expert's first chunks is the same by replay and by snapshot, for shell tasks in real sandboxes.

libs/replay/tests has the other tests, with sandboxes in memory.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ale_command import FINISH, ale
from support.fake_packages import Install
from support.sandbox_providers import must_answer, provider_of

from ale.config.episode import RolloutConfig, SandboxNeeds
from ale.config.pool import PoolConfig
from ale.messages import Message, ToolCall
from ale.registry.drivers import build_driver
from ale.registry.hooks import Hooks
from ale.rollout.episode import Episodes, StageInfo
from ale.rollout.sandbox_pool.pool import SandboxPool
from ale.rollout.selection import Option, Selection
from ale.session.session import Sessions
from ale.session.tokenizer import byte_tokenizer
from ale.specs.algorithm import RolloutRequest
from ale.specs.choice import PluginChoice
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.reward import Reward
from ale.specs.sandbox import Sandbox
from ale.specs.start import Demonstration, Reply
from ale.store.run_store import RunStore
from ale.task import Task, TaskTests
from ale.trajectory import Score, Trajectory
from ale_testing.fake_engines import ScriptedEngine
from ale_train.starts import ExpertReplay, ExpertStates, expert_steps

Events = list[tuple[str, dict[str, Any]]]
RL = StageInfo("rl", 1, "train", 1.0)
FAMILIES = ("write", "count", "find", "rename", "largest", "repair", "decode", "follow")
PROVIDERS = [
    pytest.param("local", marks=pytest.mark.bwrap),
    pytest.param("docker", marks=pytest.mark.docker),
    pytest.param("podman", marks=pytest.mark.podman),
]
LOOK = (
    "for place in . ~ /tmp /var/tmp; do cd $place; find . -xdev -printf '%y %m %U %G %p %l\\n' | sort; "
    'find . -xdev -type f | sort | while IFS= read -r file; do sha256sum "$file"; done; cd /workspace; done'
)
ODD = Task(
    id="odd",
    instruction="Leave odd things.",
    tests=TaskTests(command="true"),
    files={"gone": "x", "kept/file": "1\n", "mode": "2\n"},
    env={"NAME": "odd"},
)
ODD_COMMANDS = (
    'rm gone; echo "$NAME" > ~/name; umask 077; mkdir -p private/deep; echo 1 > private/deep/file',
    "chmod 4751 mode; chmod 700 .; ln -s /nowhere dangling; ln -s kept/file good; mkfifo pipe; cat good",
    "echo x > \"$(printf 'a\\nb\\377')\"; head -c 200000 /dev/zero > zeros; rm -r kept; echo t > /tmp/t; ls | wc -l",
    "rm good; mkdir good; touch -d 2001-01-01 good/old; stat -c %Y good/old",
)


class Look(Driver, Reward):
    """Keeps what is in the sandbox when the agent has ended."""

    async def score(self, task: Task, sandbox: Sandbox, trajectory: Trajectory) -> Score:
        found = await sandbox.exec(LOOK)
        assert found.exit_code == 0, found.output
        return Score(1.0, True, found.stdout.decode("utf-8", "surrogateescape"))


class Bench:
    """Episodes by replay and by snapshot, over one provider behind a pool."""

    def __init__(self, pool: SandboxPool, states: ExpertStates) -> None:
        self.pool, self.states = pool, states
        self.engine = ScriptedEngine()
        self.run = secrets.token_hex(6)
        self.scaffold: Any = build_driver("scaffold", PluginChoice(use="iflow"), DriverContext())

    def episodes(self) -> Episodes:
        reward = Look(PluginConfig(), DriverContext())
        return Episodes(
            Selection("sandbox", [Option("pool", self.pool)]),  # type: ignore[list-item]
            Selection("scaffold", [Option("iflow", self.scaffold)]),
            Selection("reward", [Option("look", reward)]),
            Sessions(byte_tokenizer(), self.engine, Hooks()),
            Hooks(),
            RolloutConfig(max_context=8000),
            SandboxNeeds(),
            {"run": self.run},
        )

    async def expert(self, task: Task, responder: Any) -> Trajectory:
        request = RolloutRequest(task, "g", 0, Demonstration(lambda: responder))
        done = await self.episodes().run(request, StageInfo("demonstrations", 0, "train", 1.0))
        assert done.failure is None, done.failure
        return done

    async def roll(self, task: Task, expert: Trajectory, start: int, fork: bool) -> Trajectory:
        """A rollout whose policy has nothing to add."""
        self.engine.texts.append("mine")
        replay = ExpertReplay(expert, start, states=self.states if fork else None)
        done = await self.episodes().run(RolloutRequest(task, "g", 1, replay), RL)
        assert done.failure is None, done.failure
        return done

    async def compare(self, task: Task, expert: Trajectory) -> int:
        """See that every start is the same both ways; how many there are."""
        starts = range(1, len(expert_steps(expert)))
        replays = [ExpertReplay(expert, start, states=self.states) for start in starts]
        self.episodes().expect([RolloutRequest(task, "g", 1, replay) for replay in replays], RL)
        for start in starts:
            replayed, forked = [await self.roll(task, expert, start, fork) for fork in (False, True)]
            assert essence(replayed) == essence(forked), f"{task.id} from {start}"
            assert "state" in dict(forked.timings)
        return len(starts)


def essence(trajectory: Trajectory) -> tuple[object, ...]:
    """What training sees of a rollout, and what was in its sandbox."""
    assert trajectory.reward is not None
    observed = tuple(replace(o, seconds=0.0) for o in trajectory.observations)
    return trajectory.sequences, trajectory.chunks, observed, trajectory.ended_by, trajectory.reward.detail


@pytest.fixture(params=PROVIDERS)
def use(request: pytest.FixtureRequest) -> str:
    """The name of a provider with snapshots."""
    return must_answer(str(request.param))


@pytest.fixture
async def provider(use: str, told: Events) -> AsyncIterator[Any]:
    async with provider_of(use, DriverContext(run_id="starts")) as started:
        yield started
    assert not kept_by(told) & set(await provider_of(use).snapshots()), "no state outlives its provider"


def kept_by(told: Events) -> set[str]:
    """The snapshots of all states that were made."""
    return {name for kind, data in told if kind == "start_states_made" for name in data["snapshots"]}


@pytest.fixture
def told() -> Events:
    return []


@pytest.fixture
async def bench(provider: Any, told: Events) -> AsyncIterator[Bench]:
    """Nothing is left of it."""
    kept = ExpertStates(lambda kind, **data: told.append((kind, data)))
    async with SandboxPool(provider, PoolConfig()) as pool, kept as states:
        yield (made := Bench(pool, states))
    assert made.run not in {info.labels.get("run") for info in await provider.list()}
    if "fork" in provider.capabilities:  # others keep what a sandbox stands on
        assert not kept_by(told) & set(await provider.snapshots())


@pytest.mark.parametrize("use", PROVIDERS[:1], indirect=True)
@pytest.mark.parametrize("family", FAMILIES)
async def test_both_ways_give_the_same_state_and_the_same_tokens(bench: Bench, family: str, told: Events) -> None:
    settings = {"families": [family], "wrong_turn_rate": 0.7, "train_tasks": 1}
    bash: Any = build_driver("tasks", PluginChoice(use="bash", settings=settings), DriverContext())
    starts = 0
    for task in bash.tasks("train"):
        for seed in range(2):
            expert = await bench.expert(task, bash.demonstrator(task, seed))
            starts += await bench.compare(task, expert)
    assert starts >= 2
    assert [kind for kind, _ in told] == ["start_states_made"] * 2, "one walk for all starts of an expert"


async def test_odd_files_come_along(bench: Bench, told: Events) -> None:
    said = iter(ODD_COMMANDS)

    async def responder(messages: object, tools: object) -> Reply:
        command = next(said, None)
        if command is None:
            return Reply(Message("assistant", "Done."))
        call = ToolCall(f"c{len(command)}", "shell", json.dumps({"command": command}))
        return Reply(Message("assistant", "", (call,)))

    expert = await bench.expert(ODD, responder)
    assert await bench.compare(ODD, expert) == len(ODD_COMMANDS)
    assert [kind for kind, _ in told] == ["start_states_made"]


async def test_rollouts_at_once_share_states(bench: Bench, provider: Any, told: Events) -> None:
    settings = {"families": ["repair"], "wrong_turn_rate": 0, "train_tasks": 1}
    bash: Any = build_driver("tasks", PluginChoice(use="bash", settings=settings), DriverContext())
    (task,) = bash.tasks("train")
    expert = await bench.expert(task, bash.demonstrator(task, 0))
    last = len(expert_steps(expert)) - 1
    done = await asyncio.gather(*(bench.roll(task, expert, start, True) for start in (1, last) for _ in range(4)))
    assert len({essence(t)[-1] for t in done[:4]}) == len({essence(t)[-1] for t in done[4:]}) == 1
    assert kept_by(told) <= set(await provider.snapshots())
    assert len(kept_by(told)) == 2, "each is made once"
    again = await bench.roll(task, expert, last, True)
    assert essence(again) == essence(done[-1]), "also later, where forks are used again"


AGAIN = """
from dataclasses import replace
from pathlib import Path
from ale.specs.algorithm import Algorithm
from ale.specs.driver import Driver, PluginConfig
from ale_train.starts import ExpertReplay, ExpertStates
class Again(Driver, Algorithm):
    api_version = ">=1.0,<1.2"
    Config = PluginConfig
    group_size = 3
    def __init__(self, config, context):
        super().__init__(config, context)
        self.states = ExpertStates(context.channel.event)
    async def close(self):
        await self.states.close()
    def plan(self, tasks, history):
        requests = super().plan(tasks, history)
        experts = history.trajectories[:1]
        return [replace(r, start=ExpertReplay(e, 2, (), self.states)) for r in requests for e in experts] or requests
    def batch(self, trajectories): ...
    loss = None
"""
RUN = """
name: starts
run_dir: {runs}
tasks: {{use: bash, families: [write], train_tasks: 1}}
engine: {{use: scripted, answers: [{first}, {second}, {finish}]}}
trainer: null
algorithm: again
rl: {{steps: 2, prompts_per_step: 1}}
"""


@pytest.mark.bwrap
def test_a_run_forks_where_its_algorithm_keeps_states_and_tells_how_long_that_took(
    tmp_path: Path, install: Install
) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    install("the-again", AGAIN, kind="algorithm", name="again", target="the_again:Again")
    says = [
        f'<tool_call>\n{{"name": "shell", "arguments": {{"command": "{command}"}}}}\n</tool_call>'
        for command in ("echo 1 > one", "cat one")
    ]
    file = tmp_path / "run.yaml"
    first, second, finish = (json.dumps(text) for text in (*says, FINISH))
    file.write_text(RUN.format(runs=tmp_path, first=first, second=second, finish=finish))
    done = ale("run", file, "--only", "rollout", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    with RunStore.open(tmp_path / "run") as store:
        rollouts = list(store.trajectories("step = 2"))
        events = [(kind, data["starts"]) for _, kind, data in store.events() if kind.startswith("start_states")]
    assert [t.failure for t in rollouts] == [None] * 3
    assert all([c.sampled for c in t.chunks] == [False, False, True] for t in rollouts)
    assert all("state" in dict(t.timings) for t in rollouts)
    assert events == [("start_states_made", [2])]
