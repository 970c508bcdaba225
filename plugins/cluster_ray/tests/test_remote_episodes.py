"""Episodes of workers come back as they are; one whose worker dies begins anew, and one that is ended says why."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from ale.errors import EngineError
from ale.rollout.episode import StageInfo
from ale.rollout.selection import Option, Selection
from ale.specs.algorithm import RolloutRequest
from ale.store.encoding import encode
from ale.task import Task
from ale.trajectory import Failure, Trajectory
from ale_ray import remote_episodes as episodes_module
from ale_ray.actor_calls import ActorLost, ask
from ale_ray.actor_messages import Sampling
from ale_ray.remote_episodes import BEGINNINGS, RemoteEpisodes
from ale_ray.rollout_worker import AgentEnded, EncodedTrajectory
from ale_ray.rollout_workers import DEAD

from .conftest import FakeActor, until

STAGE = StageInfo("rl", 1, "train", 1.0)
REQUEST = RolloutRequest(Task(id="t", instruction="Do it."), "g", 7)


def made(name: str) -> EncodedTrajectory:
    """A trajectory, as a worker sends it."""
    facts: dict[str, Any] = {"task_id": "t", "split": "train", "stage": "rl", "step": 1, "group": "g", "seed": 7}
    return EncodedTrajectory(*encode(Trajectory(id=name, policy_version=3, sequences=(), chunks=(), **facts)))


class FakeWorker:
    """It answers with what a test gives it; an event as an answer is waited for in vain."""

    def __init__(self, *answers: Any, ended: Any = None) -> None:
        self.answers, self.ended = [*answers], ended
        self.calls: list[str] = []
        self.names: list[str] = []
        self.moves = asyncio.Event()
        """Set as long as its process does not stand still."""
        self.moves.set()

    async def act(self, name: str, request: Any, stage: Any) -> Any:
        self.names.append(name)
        return await self._answer("act")

    async def finish(self, name: str) -> Any:
        return await self._answer("finish")

    async def end(self, name: str, error: Any) -> Any:
        self.calls.append("end")
        if isinstance(self.ended, asyncio.Event):
            await self.ended.wait()
        return self.ended

    async def drop(self, name: str) -> None:
        self.calls.append("drop")

    async def ping(self) -> None:
        await self.moves.wait()

    async def _answer(self, call: str) -> Any:
        self.calls.append(call)
        answer = self.answers.pop(0)
        if isinstance(answer, asyncio.Event):
            await answer.wait()
        if isinstance(answer, Exception):
            raise answer
        return answer


class DirectLine:
    """Calls go to the actor at once."""

    def __init__(self, actor: FakeActor) -> None:
        self.actor = actor

    def ask(self, method: str, *arguments: Any) -> asyncio.Future[Any]:
        return asyncio.ensure_future(ask("worker 0", getattr(self.actor, method).remote(*arguments)))


class FakeWorkers:
    """One worker, which is never started again."""

    def __init__(self, worker: FakeWorker) -> None:
        actor = FakeActor(worker)
        self.place: Any = SimpleNamespace(
            name="worker 0", serving=True, actor=actor, line=DirectLine(actor), listeners={}
        )
        self.entered = self.left = 0
        self.found: list[str] = []
        """What was found of it, each time it was suspected."""

    async def enter(self, group: str) -> Any:
        self.entered += 1
        await asyncio.sleep(0)
        return self.place

    def leave(self, worker: Any) -> None:
        self.left += 1

    def suspect(self, worker: Any, actor: Any, found: str = DEAD) -> None:
        self.found.append(found)

    def finish(self, worker: Any) -> None: ...


class Run:
    """Episodes of one worker."""

    def __init__(self, worker: FakeWorker) -> None:
        self.worker, self.workers, self.sampling = worker, FakeWorkers(worker), 0
        sessions = SimpleNamespace(engine=SimpleNamespace(version=3), sampling=self._sample)
        parts: dict[str, Any] = {
            path: Selection(kind, [Option("only", None)])
            for path, kind in {"provider": "sandbox", "scaffold": "scaffold", "reward": "reward"}.items()
        }
        parts |= {"hooks": None, "config": None}
        rest: dict[str, Any] = {"needs": None, "labels": {}, "sessions": sessions, "workers": self.workers}
        self.episodes = RemoteEpisodes(**parts, **rest)

    @contextmanager
    def _sample(self, session: Any) -> Iterator[None]:
        self.sampling += 1
        try:
            yield
        finally:
            self.sampling -= 1

    def begin(self) -> asyncio.Task[Trajectory]:
        return asyncio.create_task(self.episodes.run(REQUEST, STAGE))

    async def end(self, playing: asyncio.Task[Trajectory]) -> Trajectory:
        self.episodes.ended[playing] = EngineError("It hangs.")
        playing.cancel()
        return await playing


async def test_an_episode_that_is_scored_comes_back() -> None:
    run = Run(FakeWorker(AgentEnded(), made("a")))
    assert (await run.begin()).id == "a"
    assert run.worker.calls == ["act", "finish"]
    assert (run.workers.entered, run.workers.left) == (1, 1)


async def test_an_episode_that_its_worker_gives_up_begins_anew() -> None:
    run = Run(FakeWorker(None, AgentEnded(), None, made("b")))
    assert (await run.begin()).id == "b"
    assert run.worker.calls == ["act", "act", "finish", "act"]
    assert len(set(run.worker.names)) == 3, "each beginning is an episode of its own"


async def test_an_episode_whose_worker_dies_again_and_again_fails() -> None:
    run = Run(FakeWorker(*[None] * BEGINNINGS))
    played = await run.begin()
    assert played.failure is not None
    assert played.failure.kind == "sandbox"
    assert "died 4 times" in played.failure.message
    assert (run.workers.entered, run.workers.left) == (BEGINNINGS, BEGINNINGS)


async def test_a_worker_that_died_after_it_was_chosen_costs_no_beginning() -> None:
    run = Run(FakeWorker(made("a")))
    run.workers.place.serving, run.workers.place.actor = False, None
    playing = run.begin()
    await asyncio.sleep(0)
    run.workers.place.serving, run.workers.place.actor = True, FakeActor(run.worker)
    assert (await playing).id == "a"
    assert run.workers.entered == run.workers.left


@pytest.mark.parametrize("what_there_is", [None, made("partial")])
async def test_an_episode_that_is_ended_comes_back_with_what_there_is_of_it(
    what_there_is: EncodedTrajectory | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episodes_module, "ARRIVES_S", 0.01)
    run = Run(FakeWorker(asyncio.Event(), ended=what_there_is))
    playing = run.begin()
    await until(lambda: run.worker.calls)
    ended = await run.end(playing)
    assert run.worker.calls == ["act", "end"]
    if what_there_is is None:
        assert ended.failure == Failure("engine", "It hangs.", True)
        assert (ended.group, ended.seed, ended.rejected) == ("g", 7, "engine failure")
    else:
        assert ended.id == "partial"


class JustOver(FakeWorker):
    """Its episode is over before it can be ended, and the answer still under way."""

    async def act(self, name: str, request: Any, stage: Any) -> Any:
        self.calls.append("act")
        await self.moves.wait()
        await asyncio.sleep(0.01)
        return made("whole")

    async def end(self, name: str, error: Any) -> Any:
        self.moves.set()
        return None


async def test_an_episode_that_is_over_before_it_can_be_ended_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes_module, "ARRIVES_S", 60.0)
    run = Run(JustOver())
    run.worker.moves.clear()
    playing = run.begin()
    await until(lambda: run.worker.calls)
    ended = await run.end(playing)
    assert (ended.id, ended.failure) == ("whole", None)


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ("hangs", "did not end an episode within 0.05 s"),
        ("stands still", "does not answer any more"),
        ("dies", "has died"),
    ],
)
async def test_an_episode_that_a_worker_does_not_end_is_given_up_and_the_note_says_what_happened(
    what: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(FakeWorker(asyncio.Event(), ended=asyncio.Event()))
    playing = run.begin()
    await until(lambda: run.worker.calls)
    if what == "hangs":
        monkeypatch.setattr(episodes_module, "END_S", 0.05)
    if what == "stands still":
        monkeypatch.setattr(episodes_module, "PING_S", 0.01)
        run.worker.moves.clear()
    if what == "dies":
        run.workers.place.actor.kill()
    assert (await run.end(playing)).failure == Failure("engine", "It hangs.", True)
    assert run.workers.found == [found]


async def test_a_cancelled_episode_is_dropped_and_leaves_no_request_at_the_engines() -> None:
    run = Run(FakeWorker(asyncio.Event()))
    playing = run.begin()
    await until(lambda: run.worker.names)
    listener = run.workers.place.listeners[run.worker.names[0]]
    for begins in (True, True, False):
        listener.receive(Sampling("e", begins))
    assert run.sampling == 1
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    await asyncio.sleep(0)
    assert run.worker.calls == ["act", "drop"]
    assert run.sampling == 0
    assert run.workers.place.listeners == {}


async def test_a_dead_worker_is_reported() -> None:
    run = Run(FakeWorker(ActorLost("gone"), made("a")))
    assert (await run.begin()).id == "a"
    assert run.workers.found == ["has died"]
