"""Environments that fail: who is at fault, what is made anew, and what is left of a process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from env_table import WORLDS, Table, children, first, group_members, until, world

from ale.messages import Message, ToolSpec
from ale.rollout.episode import StageInfo
from ale.rollout.scheduler import Rollouts
from ale.specs.algorithm import RolloutRequest
from ale.specs.start import Demonstration, Reply, Responder
from ale.store.run_store import RunStore
from ale.trajectory import Trajectory

Tables = Callable[..., Table]
pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Failures are logged; the tests look at the trajectories."""
    caplog.set_level("CRITICAL")


def pid_of(trajectory: Trajectory) -> int:
    """The process in which an episode of `Obedient` was played."""
    return int(trajectory.sequences[0].messages[0].content.split()[1])


def repeat(answer: str, times: int) -> Responder:
    """A policy that gives an answer so many times, and then ends the episode."""
    left = count(times, -1)

    async def respond(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Reply:
        return Reply(Message("assistant", answer if next(left) else "end"))

    return respond


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ("raise", "failed in 'step': ValueError: the cup is broken ("),
        ("exit", "failed in 'step': SystemExit: no more ("),
        ("cancel", "failed in 'step': CancelledError: "),
        ("interrupt", "failed in 'step': KeyboardInterrupt: "),
        ("answer None", "TypeError: step() must return (observation, reward, done) or"),
        ("answer ('x', float('nan'), True)", "answered with the reward nan; a reward must be a finite number."),
        ("answer ('x', 'much', True)", "ValueError: could not convert string to float: 'much'"),
    ],
)
async def test_an_exception_of_the_environment_is_a_failure_with_its_sentence(
    table: Tables, answer: str, sentence: str
) -> None:
    (task,) = first(world("Obedient"))
    here = table()
    played = await here.play(task, [answer])
    assert played.reward is None
    assert played.failure is not None
    assert (played.failure.kind, played.failure.retryable) == ("task", False)
    assert sentence in played.failure.message
    again = await here.play(task, ["end"])
    assert again.failure is None, "the next episode is as if nothing had been"


async def test_a_process_that_dies_in_a_step_is_a_failure_that_is_made_anew(table: Tables) -> None:
    (task,) = first(world("Obedient"))
    here = table()
    played = await here.play(task, ["die"])
    assert played.failure is not None
    assert (played.failure.kind, played.failure.retryable) == ("sandbox", True)
    assert "ended during 'step'; the last that it printed is 'these were my last words'" in played.failure.message
    assert (await here.play(task, ["end"])).failure is None


async def test_a_late_answer_is_read_by_nobody(table: Tables) -> None:
    (task,) = first(world("Obedient"))
    here = table(timeout_s=4.0)
    late = await here.play(task, ["sleep 4.3", "end"])
    assert late.failure is not None
    assert (late.failure.kind, late.failure.retryable) == ("sandbox", True)
    assert "did not answer 'step' within 4 s" in late.failure.message
    assert not group_members(pid_of(late)), "its process is ended"
    await asyncio.sleep(0.5)
    following = await here.play(task, ["first", "end"])
    assert [o.text.partition(" ")[2] for o in following.observations] == ["heard ['first']", "heard ['first', 'end']"]


async def test_killed_processes_are_made_anew_and_none_is_a_zero(table: Tables, tmp_path: Path) -> None:
    """Of 24 episodes at 8 at once, some lose their process in the middle of a step."""
    here = table()
    tasks = first(world("Obedient"), 24)
    before = children()

    async def kill() -> None:
        for _ in range(4):
            await until(lambda: children() - before)
            await asyncio.sleep(0.15)
            victims = sorted(children() - before)
            if victims:
                with suppress(ProcessLookupError):  # the last victim, of which somebody has just taken note
                    os.kill(victims[0], signal.SIGKILL)

    with RunStore.create(tmp_path / "run") as store:
        rollouts = Rollouts(here.episodes(concurrency=8, max_resamples=5), store)
        killing = asyncio.create_task(kill())
        five_steps = Demonstration(partial(repeat, "sleep 0.05", 5))
        requests = [RolloutRequest(task, task.id, 1, five_steps) for task in tasks]
        done = await rollouts.run(requests, StageInfo("rl", 1, "train", 1.0))
        await killing
        counts = rollouts.metrics("rl")
    assert counts["resampled"] >= 1
    assert len(done) == 24
    assert [t.reward.value for t in done if t.reward] == [6.0] * 24


async def test_cancelling_an_episode_ends_its_step(table: Tables) -> None:
    (task,) = first(world("Obedient"))
    here = table()
    before = children()
    for after_s in (0.0, 0.01, 0.05, 0.5):
        playing = asyncio.create_task(here.play(task, ["sleep 60"]))
        await asyncio.sleep(after_s)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        await until(lambda: children() <= before)


async def test_an_episode_that_runs_out_of_time_between_steps_leaves_its_process_for_the_next(table: Tables) -> None:
    (task,) = first(world("Obedient"))
    here = table()
    ended = await here.play(task, ["x"], max_calls=2)
    assert ended.ended_by == "budget"
    assert pid_of(await here.play(task, ["end"])) == pid_of(ended)


async def test_close_ends_the_environments_children_and_lets_it_close(
    table: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ale_env_loop.environment_process.GRACE_S", 60.0)
    (task,) = first(world("Obedient", settings={"note": str(tmp_path / "note")}))
    here = table()
    played = await here.play(task, ["child 300", "end"])
    assert len(group_members(pid_of(played))) == 2
    await here.scaffold.close()
    await until(lambda: not group_members(pid_of(played)))
    assert (tmp_path / "note").read_text() == "closed\n"


OWNER = """
    import asyncio, signal, sys
    from ale_env_loop.environment import EpisodeSpec
    from ale_env_loop.environment_pool import EnvironmentPool

    # A shell that starts a command in the background lets it ignore SIGINT, and so do its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    async def main():
        made = EnvironmentPool(60, 60)
        async with made.open(EpisodeSpec(env=sys.argv[1], seed=0)) as env:
            print((await env.reset(0, None)).text, flush=True)
            await env.step("child 300")
            await env.step("sleep 300")

    asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
async def test_a_process_ends_with_its_owner_however_that_ends(how: signal.Signals) -> None:
    command = [sys.executable, "-c", textwrap.dedent(OWNER), f"{WORLDS}:Obedient"]
    owner = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert owner.stdout is not None
    pid = int((await owner.stdout.readline()).split()[1])
    await until(lambda: len(group_members(pid)) == 2)
    await asyncio.sleep(0.2)
    owner.send_signal(how)
    await owner.wait()
    await until(lambda: not group_members(pid))
