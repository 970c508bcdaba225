"""An episode on a worker ends once, however calls of the run overtake each other."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from ale.errors import SandboxError
from ale.rollout.episode import StageInfo
from ale.specs.algorithm import RolloutRequest
from ale.task import Task
from ale.trajectory import Failure, Trajectory
from ale_ray import rollout_worker as worker_module
from ale_ray.actor_messages import ActorClosed, Sampling
from ale_ray.rollout_worker import AgentEnded, EncodedTrajectory, RolloutWorker

STAGE = StageInfo("rl", 1, "train", 1.0)
REQUEST = RolloutRequest(Task(id="t", instruction="Do it."), "g", 7)
REASON = SandboxError("It is not needed.")


class FakeEpisodes:
    """Each episode waits for `act`, is scored, and ends; or it is ended as `Episodes` ends one."""

    def __init__(self, worker: RolloutWorker) -> None:
        self.worker = worker
        self.act = asyncio.Event()
        self.ended: dict[Any, Any] = {}

    async def run(self, request: Any, stage: Any) -> Trajectory:
        task = asyncio.current_task()
        try:
            with self.worker._sampling(SimpleNamespace(opened_by=task)):  # type: ignore[arg-type]
                await self.act.wait()
            async with self.worker._scoring():
                return self._made(None)
        except asyncio.CancelledError:
            if task not in self.ended:
                raise
            return self._made(Failure("sandbox", str(self.ended.pop(task)), True))

    def _made(self, failure: Failure | None) -> Trajectory:
        facts: dict[str, Any] = {"task_id": "t", "split": "train", "stage": "rl", "step": 1, "group": "g", "seed": 7}
        return Trajectory(id="a", policy_version=3, sequences=(), chunks=(), failure=failure, **facts)


@pytest.fixture
async def worker() -> RolloutWorker:
    made = RolloutWorker()
    made._pools = {}
    made._episodes = FakeEpisodes(made)  # type: ignore[assignment]
    return made


def let_act(worker: RolloutWorker) -> None:
    episodes: Any = worker._episodes
    episodes.act.set()


async def test_an_episode_is_scored_when_the_run_lets_it(worker: RolloutWorker) -> None:
    acting = asyncio.create_task(worker.act("e", REQUEST, STAGE))
    await asyncio.sleep(0)
    let_act(worker)
    assert await acting == AgentEnded()
    assert isinstance(await worker.finish("e"), EncodedTrajectory)
    assert await worker.messages() == [Sampling("e", True), Sampling("e", False)]


async def test_an_episode_that_is_ended_returns_what_there_is_to_both_calls(worker: RolloutWorker) -> None:
    acting = asyncio.create_task(worker.act("e", REQUEST, STAGE))
    await asyncio.sleep(0.01)
    ended = await worker.end("e", REASON)
    assert isinstance(ended, EncodedTrajectory)
    assert "It is not needed." in ended.text
    assert await acting == ended


async def test_an_episode_that_has_ended_already_is_not_waited_for(worker: RolloutWorker) -> None:
    let_act(worker)
    assert await worker.act("e", REQUEST, STAGE) == AgentEnded()
    await worker.finish("e")
    async with asyncio.timeout(1):
        assert await worker.end("e", REASON) is None
        await worker.drop("e")
    assert await worker.finish("e") is None


async def test_an_end_that_overtakes_its_episode_waits_for_it(worker: RolloutWorker) -> None:
    ending = asyncio.create_task(worker.end("e", REASON))
    await asyncio.sleep(0.01)
    acting = asyncio.create_task(worker.act("e", REQUEST, STAGE))
    assert isinstance(await ending, EncodedTrajectory)
    assert isinstance(await acting, EncodedTrajectory)


async def test_an_end_that_comes_just_when_its_episode_is_about_to_begin_lets_it_begin(worker: RolloutWorker) -> None:
    acting = asyncio.create_task(worker.act("e", REQUEST, STAGE))
    ending = asyncio.create_task(worker.end("e", REASON))  # its turn comes right after that of `acting`
    ended = await ending
    assert isinstance(ended, EncodedTrajectory)
    assert "It is not needed." in ended.text
    assert await acting == ended


async def test_an_episode_that_was_given_up_before_it_arrived_does_not_begin(
    worker: RolloutWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await worker.drop("e")
    assert await worker.act("e", REQUEST, STAGE) is None
    monkeypatch.setattr(worker_module, "ARRIVES_S", 0.02)
    assert await worker.end("f", REASON) is None
    assert await worker.act("f", REQUEST, STAGE) is None
    assert worker._running == {}


async def test_a_worker_that_closes_gives_its_episodes_up_and_closes_what_starts_share(worker: RolloutWorker) -> None:
    class States:
        closed = False

        async def close(self) -> None:
            self.closed = True

    worker._shared = {"states": States(), "nothing to close": nullcontext()}
    acting = asyncio.create_task(worker.act("e", REQUEST, STAGE))
    await asyncio.sleep(0)
    await worker.close()
    assert await acting is None
    assert worker._shared["states"].closed
    assert (await worker.messages())[-1] == ActorClosed()
