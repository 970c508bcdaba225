"""These tests check that a run on a cluster goes as in one process, and that nothing of the cluster outlives it.

The run has real parts (`cluster_run.py`), and its nodes are on this machine."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from ale.errors import AleError, SandboxError
from ale.registry.installed import list_plugins
from ale.rollout.episode import Episodes
from ale.specs.algorithm import RolloutRequest
from ale.specs.choice import PluginChoice
from ale.specs.cluster import EnginePlan
from ale.specs.engine import FolderTicket, PolicyVersion
from ale.task import Task, TaskTests
from ale.trajectory import Failure, Trajectory
from ale_testing import processes
from ale_testing.async_tests import async_test, cancelled, fails_with, patience_s
from ale_testing.cluster_run import (
    STAGE,
    ClusterRun,
    folders_of,
    open_run,
    play_here,
    temporary_entries,
    until,
    until_ended,
)
from ale_testing.engine_requests import ask, check, check_logprobs
from ale_testing.plugin_under_test import Subject
from ale_testing.tiny_model import write_tiny_model

SECONDS = f"600.{os.getpid():08d}"
"""How long a command takes that no test waits for; no other process has the same."""


def task_with(name: str, work: str) -> Task:
    """A task whose agent runs these commands, and which is solved if they write 'yes' into out."""
    tests = TaskTests(command="grep -qx yes out")
    return Task(id=f"kit-{name}", instruction="Run work.sh.", files={"work.sh": work}, tests=tests)


SOLVED = task_with("solved", "echo yes > out; echo größe\n")
FAILED = task_with("failed", "echo no > out\n")
WAITING = task_with("waiting", f"sleep {SECONDS}\n")
LEARNED: dict[str, Any] = {
    "scaffold": "chat",
    "engine": {"use": "torch", "device": "cpu", "threads": 1, "max_batch": 8, "max_context": 256},
    "rollout": {"concurrency": 8, "max_tokens": 16, "max_context": 200},
}
"""Sections with which a tiny model is asked once in each episode."""
WRONG = {
    "an engine that is not installed": PluginChoice(use="no_such_engine"),
    "an engine with a setting that it does not have": PluginChoice(
        use="scripted", settings={"answers": ["x"], "no_such_key": 1}
    ),
    "an engine that cannot be built": PluginChoice(use="scripted", settings={"function": "no_such_module:answer"}),
}


def check_made(played: Trajectory, task: Task) -> None:
    """What holds of an episode that has ended well."""
    assert played.failure is None, f"an episode must be made as in one process; {played.failure}"
    assert played.rejected is None, f"an episode that ended well must not be rejected ('{played.rejected}')"
    assert played.reward is not None, "an episode that ended well must have a reward"
    assert played.passed == (task == SOLVED), f"the reward of {task.id} must be that of its tests, not {played.reward}"


def facts_of(played: Trajectory) -> dict[str, object]:
    """What is the same each time that the episode is made: all but its name and times."""
    return {
        "task_id": played.task_id,
        "place in the run": (played.stage, played.step, played.split, played.group, played.seed),
        "policy_version": played.policy_version,
        "token_ids": [sequence.token_ids for sequence in played.sequences],
        "messages": [sequence.messages for sequence in played.sequences],
        "chunks": played.chunks,
        "observations": [(seen.chunk, seen.tool, seen.text, seen.exit_code) for seen in played.observations],
        "reward": played.reward and (played.reward.value, played.reward.passed),
        "failure": played.failure,
        "rejected": played.rejected,
        "ended_by": played.ended_by,
    }


async def reach_command(run: ClusterRun) -> asyncio.Task[Trajectory]:
    """An episode that is being made, and whose agent waits for its command."""
    playing = asyncio.create_task(run.play(WAITING))
    await until(lambda: playing.done() or processes.with_argument(SECONDS), "an episode must come to its command")
    assert not playing.done(), f"an episode must wait for the agent's command; it ended: {playing.result()!r:.500}"
    return playing


async def until_command_ended(why: str) -> None:
    """Wait until no command of `WAITING` runs."""
    await until(lambda: not processes.with_argument(SECONDS), why)


@async_test
async def test_episodes_are_as_those_of_a_run_in_one_process(subject: Subject) -> None:
    async with open_run(subject) as run:
        for task in (SOLVED, FAILED):
            played, alone = await run.play(task), await play_here(subject, task)
            check_made(played, task)
            found, wanted = facts_of(played), facts_of(alone)
            for name in wanted:
                assert found[name] == wanted[name], f"{name} of {task.id} must be that of a run in one process"


@async_test
async def test_many_episodes_are_made_at_once_and_the_run_says_when_they_are_scored(subject: Subject) -> None:
    scored: list[None] = []

    @asynccontextmanager
    async def scoring() -> AsyncIterator[None]:
        scored.append(None)
        yield

    async with open_run(subject) as run:
        episodes = replace(run.episodes, scoring=scoring)
        requests = [RolloutRequest((SOLVED, FAILED)[i % 2], f"kit-{i % 2}", i) for i in range(8)]
        played = await asyncio.gather(*(episodes.run(request, STAGE) for request in requests))
        for request, one in zip(requests, played, strict=True):
            check_made(one, request.task)
            assert (one.group, one.seed) == (request.group, request.seed), "a trajectory must be that of its request"
        assert len({one.id for one in played}) == len(played), "each episode must have an id of its own"
        assert len(scored) == len(played), "`Episodes.scoring` must be held once for each reward that is computed"


@async_test
async def test_a_run_hears_of_its_episodes_and_sandboxes(subject: Subject) -> None:
    async with open_run(subject) as run:
        played = await run.play(SOLVED)
        await until(
            lambda: run.witness.calls.count(played.id) == len(played.chunks),
            "the run's observers must be told of each model call (ale_model_called)",
        )
        assert run.witness.sandboxes == [played.id], "they must be told of each sandbox (ale_sandbox_started)"
        for name, pool in run.pools.items():
            await until(pool.metrics, f"the pool of '{name}' must have metrics once an episode has used it")
            assert all(map(math.isfinite, pool.metrics().values())), f"metrics are numbers, not {pool.metrics()}"


@async_test
async def test_a_cancelled_episode_leaves_nothing_running_and_others_go_on(subject: Subject) -> None:
    async with open_run(subject) as run:
        for after_s in (0.0, 0.001, 0.02, 0.2):
            await cancelled(run.play(WAITING), after_s)
        await cancelled(await reach_command(run), 0.0)
        await until_command_ended("what a cancelled episode runs must end with it, whenever it is cancelled")
        check_made(await run.play(SOLVED), SOLVED)


@async_test
async def test_an_episode_that_the_run_ends_comes_back_with_the_reason(subject: Subject) -> None:
    waits = asyncio.Event()

    @asynccontextmanager
    async def scoring() -> AsyncIterator[None]:
        waits.set()
        await asyncio.Event().wait()
        yield

    async with open_run(subject) as run:
        ended = await end_episode(run.episodes, await reach_command(run))
        assert len(ended.chunks) == 1, "its trajectory must have what was recorded until then"
        await until_command_ended("what an episode runs must end with it")
        episodes = replace(run.episodes, scoring=scoring)
        playing = asyncio.create_task(episodes.run(RolloutRequest(SOLVED, "kit", 1), STAGE))
        await until(waits.is_set, "an episode whose agent has ended must ask for `Episodes.scoring`")
        ended = await end_episode(episodes, playing)
        assert len(ended.chunks) == 2, "the trajectory of an episode that waits to be scored must have all of it"


async def end_episode(episodes: Episodes, playing: asyncio.Task[Trajectory]) -> Trajectory:
    """End an episode as a run does that does not need it any more, and check what comes back."""
    episodes.ended[playing] = SandboxError("The kit ends it.")
    playing.cancel()
    done, _ = await asyncio.wait([playing], timeout=patience_s())
    assert done, "an episode that is cancelled as `Episodes.ended` says must end"
    assert not playing.cancelled(), "an episode that `Episodes.ended` names must return a trajectory"
    ended = playing.result()
    assert ended.failure == Failure("sandbox", "The kit ends it.", True), f"not the reason: {ended.failure}"
    assert (ended.rejected, ended.reward) == ("sandbox failure", None), "it has no reward, and is rejected"
    return ended


@async_test
async def test_newer_weights_are_used_by_the_engine_and_by_episodes(subject: Subject) -> None:
    if not any(info.name == "torch" and info.status == "ok" for info in list_plugins("engine")):
        pytest.skip("the engine `torch` is not installed (pip install ale-plugin-engine-torch)")
    folders = {version: subject.folder / f"cluster-model-{version}" for version in (0, 1)}
    tokenizer, _ = (write_tiny_model(folder, version) for version, folder in folders.items())
    async with open_run(subject, folders[0], **LEARNED) as run:
        assert "folder" in run.engine.transports, f"weights must come from folders, not only by {run.engine.transports}"
        for version, folder in folders.items():
            if version:
                await run.engine.load_weights(PolicyVersion(version, FolderTicket(folder)))
            assert run.engine.version == version, f"its version must be {version}, not {run.engine.version}"
            requests = [ask(tokenizer, session=f"s{i}", seed=i) for i in range(4)]
            for request, made in zip(requests, await asyncio.gather(*map(run.engine.generate, requests)), strict=True):
                check(made, request, tokenizer, real=True)
                check_logprobs(made, request, {version: folder})
            for one in await asyncio.gather(*(run.play(SOLVED, i, f"kit-{i}") for i in range(4))):
                assert one.failure is None, f"an episode must be made with a model's engine; {one.failure}"
                versions = {one.policy_version, *(number for chunk in one.chunks for number in chunk.versions)}
                assert versions == {version}, f"an episode that begins after load_weights has its version: {versions}"


@async_test
async def test_an_engine_that_cannot_start_is_refused_and_the_cluster_closes(subject: Subject) -> None:
    before = processes.below()
    cluster: Any = subject.build()
    async with cluster:
        for what, engine in WRONG.items():
            plan = EnginePlan(engine, check=lambda driver: None)
            await fails_with(cluster.start_engine(plan), AleError, why=what)
        own = processes.below() - before
    await cluster.close()
    await until_ended(own, "close() must end the processes of a cluster whose engine did not start")


@async_test
async def test_a_closed_cluster_leaves_no_process_and_no_folder(subject: Subject) -> None:
    await play_here(subject, SOLVED)  # what sandboxes leave once for all runs is not counted
    before, entries = processes.below(), temporary_entries()
    async with open_run(subject) as run:
        check_made(await run.play(SOLVED), SOLVED)
        own = processes.below() - before
        folders = folders_of(own)
    await run.cluster.close()
    await until_ended(own, "close() must end the cluster's processes")
    await until(lambda: not any(folder.exists() for folder in folders), f"close() must remove {[*map(str, folders)]}")
    why = "close() must leave nothing in the temporary folder"
    try:
        await until(lambda: temporary_entries() <= entries, why)
    except AssertionError as error:
        raise AssertionError(f"{error}; there is {sorted(temporary_entries() - entries)[:5]}") from None
