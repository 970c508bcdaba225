"""Starts by snapshot: the same rollout as by replay, one walk for all, and whatever goes wrong is a replay or made
anew.

Sandboxes are in memory here, and fail when a test wants it; with real ones: tests/test_start_states.py.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale.config.run import RolloutConfig, SandboxNeeds
from ale.errors import AleError, ConfigError, SandboxError, StartDiverged
from ale.messages import Message, ToolSpec
from ale.registry.hooks import Hooks
from ale.rollout.episode import Episodes, StageInfo
from ale.rollout.scheduler import Rollouts
from ale.rollout.selection import Option, Selection
from ale.session.session import Sessions
from ale.session.tokenizer import byte_tokenizer
from ale.specs.algorithm import RolloutRequest
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.events import hookimpl
from ale.specs.reward import Reward
from ale.specs.sandbox import AGENT, ExecResult, Sandbox, SandboxSpec
from ale.specs.sandbox_protocols import SandboxStats
from ale.specs.scaffold import ModelSession, Scaffold
from ale.task import Task, TaskTests
from ale.trajectory import Score, Trajectory
from ale_replay import ExpertReplay, ExpertReplies, ExpertStates
from ale_replay.sandboxes import RecordingSandbox, ReplayedSandbox
from ale_sandbox_pool.slots import Slots
from ale_testing.fake_engines import ScriptedEngine
from ale_testing.fake_sandboxes import MemoryProvider, MemorySandbox
from ale_testing.sample_conversation import EXPERT, START, TOOLS

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


@pytest.fixture(autouse=True)
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


@pytest.mark.parametrize("before", ["nothing", "upload", "title"])
@pytest.mark.parametrize("after", ["nothing", "upload"])
async def test_both_ways_give_the_same_rollout_from_every_start(bench: Bench, before: str, after: str) -> None:
    expert = await bench.expert()
    bench.hands.before, bench.hands.after = before, after
    for start in range(len(WORK) + 1):
        seen = []
        for fork in (False, True):
            bench.engine.texts = ["A title"] * (before == "title") * (2 if fork and start else 1)
            bench.provider.ran.clear()
            done = await bench.roll(expert, start, fork=fork)
            assert done.failure is None, done.failure
            seen.append((essence(done), bench.provider.ran[-1][1]))
        assert seen[0] == seen[1]
        ran = [command for box, command in bench.provider.ran if box == bench.provider.ran[-1][0]]
        assert ran == [LIST], "in the fork nothing is run but what the policy asks for"
    assert bench.events("start_states_given_up") == []


async def test_a_task_without_experts_and_a_start_at_the_beginning_need_no_state(bench: Bench) -> None:
    expert = await bench.expert()
    done = await bench.roll(expert, 0)
    assert (bench.provider.made, "state" in dict(done.timings)) == (0, False)
    done = await bench.roll(expert, 1)
    assert bench.provider.made == 1
    assert dict(done.timings)["state"] > 0


@pytest.mark.parametrize("lacking", ["snapshot", "outside"])
async def test_where_nothing_can_be_forked_the_expert_is_replayed(bench: Bench, lacking: str) -> None:
    """A run may select among several providers and scaffolds."""
    expert = await bench.expert()
    if lacking == "snapshot":
        bench.provider.sandbox_type = MemorySandbox  # type: ignore[misc]
    else:
        bench.hands.over_http = True  # type: ignore[misc]
    done = await bench.roll(expert, 3)
    assert (done.failure, bench.provider.made, "state" in dict(done.timings)) == (None, 0, False)
    assert bench.commands() == [*WORK[:3], LIST]


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_all_rollouts_of_a_step_need_each_state_once_and_one_walk(bench: Bench, concurrency: int) -> None:
    expert = await bench.expert()
    requests = [bench.request(expert, start, seed=i) for i, start in enumerate([2, 4, 4, 2, 3, 3, 4, 2])]
    bench.engine.texts = ["mine"] * len(requests)
    kept: list[Trajectory] = []
    store = type("Store", (), {"add_trajectory": staticmethod(kept.append)})()
    done = await Rollouts(bench.episodes(concurrency=concurrency), store).run(requests, RL)
    assert [t.failure for t in done] == [None] * 8
    assert bench.provider.made == 3
    assert bench.commands() == WORK[:4], "the expert's commands are run once"
    (event,) = bench.events("start_states_made")
    assert (event["expert"], event["starts"]) == (expert.id, [2, 3, 4])


async def test_an_earlier_start_that_is_asked_for_later_takes_another_walk(bench: Bench) -> None:
    expert = await bench.expert()
    for start in (4, 2, 4, 2):
        assert (await bench.roll(expert, start)).failure is None
    assert [event["starts"] for event in bench.events("start_states_made")] == [[4], [2]]


async def test_what_is_asked_for_on_the_way_is_kept_by_the_same_walk(bench: Bench) -> None:
    bench.provider.stand.set()
    expert = await bench.expert(["put a 1", "stand", "put b 1"])
    bench.provider.stand.clear()
    first = asyncio.create_task(bench.roll(expert, 2))
    await bench.until_run("stand")
    later = [asyncio.create_task(bench.roll(expert, start)) for start in (3, 1)]
    await asyncio.sleep(0)
    bench.provider.stand.set()
    assert [done.failure for done in await asyncio.gather(first, *later)] == [None] * 3
    assert [event["starts"] for event in bench.events("start_states_made")] == [[2, 3], [1]], "1 was behind it already"


async def test_of_other_results_than_the_experts_no_state_is_kept(bench: Bench) -> None:
    expert = await bench.expert(["put a 1", "count", "put b 1"])
    await bench.provider.remove("box-1")
    bench.provider.ran.append(("another", "before"))
    done = [await bench.roll(expert, start) for start in (1, 2, 3)]
    assert [t.failure and t.failure.kind for t in done] == [None, "replay", "replay"]
    (event,) = bench.events("start_states_given_up")
    assert event["start"] == 2
    assert "where it had answered" in event["reason"]


@pytest.mark.parametrize("swallows", [False, True])
async def test_an_agent_that_acts_otherwise_in_a_fork_diverges_once_and_is_replayed_then(
    bench: Bench, swallows: bool
) -> None:
    expert = await bench.expert()
    bench.hands.before, bench.hands.swallows = "key", swallows
    done = [await bench.roll(expert, 2) for _ in range(3)]
    assert [t.failure and t.failure.kind for t in done] == ["replay", None, None]
    assert "called the sandbox with exec 'put key 1'" in str(done[0].failure)
    (event,) = bench.events("start_states_given_up")
    assert event["start"] == 0


async def test_an_agent_that_swallows_what_it_did_otherwise_and_then_ends_has_diverged(bench: Bench) -> None:
    expert = await bench.expert()
    assert (await bench.roll(expert, 2)).failure is None
    bench.hands.after, bench.hands.swallows, bench.hands.most = "late key", True, 2
    done = await bench.roll(expert, 2)
    assert done.failure is not None
    assert (done.failure.kind, len(done.chunks)) == ("replay", 2)


async def test_a_call_at_another_time_has_diverged() -> None:
    provider, calls = Forks(), [("reply", ""), ("exec", LIST)]
    replies = ExpertReplies(EXPERT, 4)
    recording = RecordingSandbox(await provider.start_sandbox(SandboxSpec()), replies)
    await play(recording, replies, calls)
    record = recording.record()
    assert record is not None
    fork = ReplayedSandbox(recording.inner, record, frozenset({"shell"}), ExpertReplies(EXPERT, 4), lambda reason: None)
    with pytest.raises(StartDiverged, match="but before with exec 'list' after 1 chunks"):
        await fork.exec(LIST)


@pytest.mark.parametrize(
    ("after", "reason"),
    [("stats", "its agent does more than run commands and move files"), ("none", "more than 0 MiB")],
)
async def test_what_cannot_be_recorded_is_replayed(
    bench: Bench, after: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if after == "none":
        monkeypatch.setattr("ale_replay.sandboxes.MOST_BYTES", 0)
    expert = await bench.expert()
    bench.hands.after = after
    done = [await bench.roll(expert, start) for start in (1, 4, 4)]
    assert [t.failure for t in done] == [None] * 3
    (event,) = bench.events("start_states_given_up")
    assert reason in event["reason"]
    assert event["start"] == (1 if after == "stats" else 3)


async def test_a_scaffold_that_crashes_on_the_walk_crashes_in_the_replay(bench: Bench) -> None:
    expert = await bench.expert()
    broken = replace(expert.sequences[0].messages[2].tool_calls[0], arguments='{"cmd": ""}')
    messages = list(expert.sequences[0].messages)
    messages[2] = replace(messages[2], tool_calls=(broken,))
    line = replace(expert.sequences[0], messages=tuple(messages), token_ids=(0,) * len(expert.sequences[0].token_ids))
    done = await bench.roll(replace(expert, sequences=(line,)), 2)
    assert done.failure is not None
    assert done.failure.message == "The scaffold crashed: KeyError: 'command'"
    assert "the scaffold crashed" in bench.events("start_states_given_up")[0]["reason"]


async def test_a_walk_that_takes_too_long_is_given_up(bench: Bench) -> None:
    bench.provider.stand.set()
    expert = await bench.expert(["put a 1", "stand", "put b 1"])
    bench.provider.stand.clear()
    done = await bench.roll(expert, 2, timeout_s=0.05)
    assert done.failure is not None, "as its replay is: the policy's turn never came"
    assert done.failure.kind == "replay"
    assert "timeout_s include replayed chunks" in done.failure.message
    assert "rollout.timeout_s=0.05" in bench.events("start_states_given_up")[0]["reason"]
    assert (await bench.roll(expert, 1)).failure is None, "what comes before is forked"
    assert bench.events("start_states_made")[-1]["starts"] == [1]


async def test_a_lost_sandbox_fails_the_rollout_that_walked_and_the_next_one_walks_again(bench: Bench) -> None:
    expert = await bench.expert(["put a 1", "die", "put b 1"])
    bench.provider.deaths = 1
    done = await asyncio.gather(*(bench.roll(expert, 3) for _ in range(3)))
    failures = [t.failure for t in done]
    assert failures[1:] == [None, None]
    assert failures[0] is not None
    assert (failures[0].kind, failures[0].retryable) == ("sandbox", True)
    assert bench.events("start_states_given_up") == []
    assert bench.provider.made == 1


async def test_a_start_that_was_kept_is_used_though_the_walk_failed_later(bench: Bench) -> None:
    expert = await bench.expert(["put a 1", "die", "put b 1"])
    bench.provider.deaths = 1
    bench.episodes().expect([bench.request(expert, 3)], RL)
    assert (await bench.roll(expert, 1)).failure is None
    assert bench.events("start_states_made")[0]["starts"] == [1]


@pytest.mark.parametrize(("error", "kind"), [(SandboxError("disk full"), "sandbox"), (None, None)])
async def test_a_snapshot_that_cannot_be_made_is_made_anew_or_given_up(
    bench: Bench, error: Exception | None, kind: str | None
) -> None:
    expert = await bench.expert()
    bench.provider.no_snapshots = [error or AleError("never")]
    done = [await bench.roll(expert, 2) for _ in range(2)]
    assert [t.failure and t.failure.kind for t in done] == [kind, None]
    assert bench.provider.made == (1 if error else 0)
    assert len(bench.events("start_states_given_up")) == (0 if error else 1)


async def test_a_snapshot_that_a_setting_forbids_ends_the_run_with_its_sentence(bench: Bench) -> None:
    expert = await bench.expert()
    bench.provider.no_snapshots = [ConfigError("Set needs.resources.disk_mib to null.")]
    with pytest.raises(ConfigError, match=r"needs\.resources\.disk_mib"):
        await bench.roll(expert, 2)


async def test_one_who_waits_walks_where_the_walker_is_cancelled(bench: Bench) -> None:
    bench.provider.stand.set()
    expert = await bench.expert(["put a 1", "stand"])
    bench.provider.stand.clear()
    walker = asyncio.create_task(bench.roll(expert, 2))
    await bench.until_run("stand")
    waiting = asyncio.create_task(bench.roll(expert, 2))
    await asyncio.sleep(0)
    walker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await walker
    bench.provider.stand.set()
    assert (await waiting).failure is None
    assert bench.commands().count("stand") == 2


async def test_a_state_that_somebody_removed_fails_one_rollout_and_is_made_again(bench: Bench) -> None:
    expert = await bench.expert()
    assert (await bench.roll(expert, 2)).failure is None
    bench.provider.kept.clear()
    done = [await bench.roll(expert, 2) for _ in range(2)]
    assert [t.failure and (t.failure.kind, t.failure.retryable) for t in done] == [("sandbox", True), None]
    assert bench.provider.made == 2


async def test_of_many_states_those_that_were_used_longest_ago_are_removed(bench: Bench) -> None:
    expert = await bench.expert()
    async with ExpertStates(most=2) as states:
        bench.states = states
        for start in (1, 2, 1, 3):
            await bench.roll(expert, start)
        assert sorted(bench.provider.kept) == ["s1", "s3"], "2 was used longest ago"
        await bench.roll(expert, 2)
        assert bench.provider.made == 4
        assert len(bench.provider.kept) == 2


async def test_a_state_that_is_lent_while_another_is_removed_stays(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    expert = await bench.expert()
    for start in (1, 2, 3):
        await bench.roll(expert, start)
    states, lent, removing = bench.states, asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(states, "_most", 1)
    remove = bench.provider.remove_snapshot

    async def slowly(name: str) -> None:
        removing.set()
        await lent.wait()
        await remove(name)

    monkeypatch.setattr(bench.provider, "remove_snapshot", slowly)
    making_room = asyncio.create_task(states._make_room())
    await removing.wait()
    state = next(state for state in states._kept if state.start == 2)
    state.users += 1
    lent.set()
    await making_room
    state.users -= 1
    assert state in states._kept
    assert sorted(bench.provider.kept) == ["s2"]


async def test_forks_that_start_at_once_are_not_kept_to_be_used_again(bench: Bench) -> None:
    expert = await bench.expert()
    assert (await bench.roll(expert, 2)).failure is None
    assert bench.provider.ran[-1][0].startswith("box-")
    bench.provider.capabilities |= {"fork"}  # type: ignore[misc]
    assert (await bench.roll(expert, 2)).failure is None
    assert bench.provider.ran[-1][0].startswith("ale-fork-")
    slots = Slots(None, 1, lambda slot: None)
    for name in (None, "ale-fork-1"):
        slots.kind_of(SandboxSpec(id=name, from_snapshot=f"of {name}"))
    assert [kind.spec.from_snapshot for kind in slots.kinds.values()] == ["of None"], "none is kept warm"


async def test_observers_see_the_walk_and_nothing_that_was_not_run(bench: Bench) -> None:
    heard: list[tuple[str, str]] = []

    class Watch:
        @hookimpl
        def ale_before_exec(self, episode_id: str, command: str) -> str | None:
            heard.append((episode_id, command))
            return "no" if command == "put b 2" else None

    bench.hooks.register("watch", Watch())
    expert = await bench.expert()
    heard.clear()
    done = await bench.roll(expert, 4)
    assert done.failure is None
    walk, fork = {episode: None for episode, _ in heard}
    assert walk.startswith("start-")
    assert [command for episode, command in heard if episode == walk] == WORK[:4]
    assert [command for episode, command in heard if episode == fork] == [LIST]
    assert "refused: no" in done.sequences[0].messages[5].content


CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("exec"), st.sampled_from(["put a 1", "put b 2", "cat a", "cat b", LIST])),
        st.tuples(st.just("upload"), st.sampled_from("ab")),
        st.tuples(st.just("download"), st.sampled_from("ab")),
        st.tuples(st.just("reply"), st.just("")),
    ),
    max_size=12,
)


async def play(box: Sandbox, replies: ExpertReplies, calls: list[tuple[str, str]]) -> list[object]:
    """What an agent is told that does all this."""
    told: list[object] = []
    for method, what in calls:
        if method == "exec":
            told.append(await box.exec(what))
        elif method == "upload":
            await box.upload({what: b"up"})
        elif method == "download":
            try:
                told.append(await box.download(what))
            except FileNotFoundError as error:
                told.append(error.filename)
        else:
            replies.done = min(replies.done + 1, 4)
    return told


@settings(max_examples=150, deadline=None)
@given(CALLS, st.data())
def test_a_record_answers_the_same_calls_alike_and_no_others(calls: list[tuple[str, str]], data: st.DataObject) -> None:
    async def check() -> None:
        provider = Forks()
        replies = ExpertReplies(EXPERT, 4)
        recording = RecordingSandbox(await provider.start_sandbox(SandboxSpec()), replies)
        told = await play(recording, replies, calls)
        record = recording.record()
        assert record is not None
        snapshot = await recording.inner.snapshot()

        async def fork() -> tuple[ReplayedSandbox, ExpertReplies, Sandbox]:
            inner, again = await provider.start_sandbox(SandboxSpec(from_snapshot=snapshot)), ExpertReplies(EXPERT, 4)
            return ReplayedSandbox(inner, record, frozenset({"shell"}), again, lambda reason: None), again, inner

        replayed, again, inner = await fork()
        ran = len(provider.ran)
        assert await play(replayed, again, calls) == told
        assert len(provider.ran) == ran
        again.done = 4
        replayed.policy_asked([ToolSpec("title", "Another.")])
        with pytest.raises(StartDiverged):
            await replayed.exec(LIST)

        replayed, again, inner = await fork()
        await play(replayed, again, calls)
        again.done = 4
        replayed.policy_asked(TOOLS)
        assert (await replayed.exec(LIST)).stdout == (await inner.exec(LIST)).stdout

        place = data.draw(st.integers(0, len(calls)))
        cut = data.draw(st.booleans()) and place < len(calls)
        other = [*calls[:place], *([] if cut else [("exec", "other")]), *calls[place + cut :]]
        if [c for c in other if c[0] != "reply"] == [c for c in calls if c[0] != "reply"]:
            return
        replayed, again, inner = await fork()
        with suppress(StartDiverged):
            await play(replayed, again, other)
            again.done = 4
            replayed.policy_asked(TOOLS)
        with pytest.raises(StartDiverged):
            replayed.check()

    asyncio.run(check())


async def test_a_call_under_way_is_in_no_record() -> None:
    provider = Forks()
    recording = RecordingSandbox(await provider.start_sandbox(SandboxSpec()), ExpertReplies(EXPERT, 4))
    call = asyncio.create_task(recording.exec("stand"))
    await asyncio.sleep(0.01)
    assert recording.record() is None
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call
    assert recording.record() is None
    assert recording.unfit == "a call of its agent was cancelled"


async def test_what_the_agent_changes_afterwards_does_not_change_the_record() -> None:
    class Box(ForkBox):
        async def upload(self, files: Mapping[str, bytes], *, user: str = AGENT, mode: int = 0o644) -> None:
            await super().upload(files, user=user, mode=mode)

    provider = Forks()
    recording = RecordingSandbox(await provider.start_sandbox(SandboxSpec()), ExpertReplies(EXPERT, 4))
    env, files = {"A": "1"}, {"a": b"1"}
    await recording.exec("list", env=env)
    await recording.upload(files)
    env["A"], files["a"] = "2", b"2"
    record = recording.record()
    assert record is not None
    assert record[0].asked.arguments["env"] == {"A": "1"}
    assert record[1].asked.arguments["files"] == {"a": b"1"}
