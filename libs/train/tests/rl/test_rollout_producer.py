"""The half of the loop that makes rollouts, with rollouts that the tests finish when they like."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ale.errors import AleError, PluginError
from ale.specs.algorithm import Algorithm, RolloutHistory, RolloutRequest
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.start import Demonstration
from ale.specs.trainer import TrainBatch
from ale.task import Task, TaskTests
from ale.trajectory import Score, Trajectory
from ale_train.config.rl import RLConfig
from ale_train.rl.loop import make_buffer
from ale_train.rl.rollout_producer import RolloutProducer
from ale_train.rl.sample_buffer import SampleBuffer


def task(number: int) -> Task:
    return Task(id=f"t{number}", instruction="", tests=TaskTests(command="true"))


class Planner(Driver, Algorithm):
    """Two rollouts of each task; it notes what it knew when it planned."""

    api_version = ">=1.0,<1.2"
    group_size = 2

    def __init__(self, config: Any, context: DriverContext) -> None:
        super().__init__(config, context)
        self.planned: list[tuple[int, int, list[str], list[str], list[str]]] = []

    def plan(self, tasks: Sequence[Task], history: RolloutHistory) -> list[RolloutRequest]:
        seen = sorted({t.task_id for t in history.trajectories})
        self.planned.append((history.step, history.place, [t.id for t in tasks], seen, sorted(history.rejected)))
        return super().plan(tasks, history)

    def batch(self, trajectories: Sequence[Trajectory]) -> TrainBatch | None:
        raise AssertionError("nothing is trained here")

    loss: Any = None


class Scene:
    """A producer over rollouts that end when the test says so."""

    def __init__(self, settings: dict[str, Any], tasks: Sequence[int], planner: type[Planner] = Planner) -> None:
        self.config = RLConfig(**{"steps": 3, "prompts_per_step": 2, **settings})
        self.buffer: SampleBuffer[Trajectory] = make_buffer(self.config)
        self.clock = 0.0
        self.buffer._clock = lambda: self.clock
        self.running: dict[str, asyncio.Future[tuple[float, ...]]] = {}
        self.rejected: list[tuple[str, str]] = []
        self.made: dict[str, Trajectory] = {}
        """What the store holds."""
        self.events: list[dict[str, Any]] = []
        self.algorithm = planner(PluginConfig(), DriverContext())
        self.engine = SimpleNamespace(version=0)
        self.given_up: dict[str, Counter[str]] = {}
        store = SimpleNamespace(
            change=lambda *changes: self.rejected.extend((id, why) for _, rows in changes for why, id in rows),
            trajectories=lambda where, ids: [self.made[id] for id in json.loads(ids[0])],
            add_event=lambda kind, **data: self.events.append(data),
            reasons=lambda stage, step: "2 x sandbox failure",
        )
        bench: Any = SimpleNamespace(
            algorithm=self.algorithm,
            engine=self.engine,
            store=store,
            rollouts=SimpleNamespace(run=self.run_rollouts, given_up=self.given_up),
            config=SimpleNamespace(
                seed=1,
                algorithm=SimpleNamespace(use="planner"),
                rollout=SimpleNamespace(temperature=1.0, top_p=1.0, top_k=0, spare=0),
            ),
            tasks=SimpleNamespace(demonstrator=lambda task, seed: None),
            sessions=SimpleNamespace(),
            progress=SimpleNamespace(stage=lambda name, total: None),
            stopwatch=lambda stage: nullcontext(),
        )
        self.producer = RolloutProducer(
            bench, self.config, self.buffer, map(task, itertools.chain(tasks, itertools.count(90)))
        )

    async def run_rollouts(self, requests: Sequence[RolloutRequest], stage: Any) -> list[Trajectory]:
        version = self.engine.version
        self.running[requests[0].task.id] = future = asyncio.get_running_loop().create_future()
        rewards = await future
        made = [
            Trajectory(
                f"{r.group}.{i}", r.task.id, "train", "rl", stage.step, r.group, i, version, (), (),
                reward=Score(value, value > 0),
            )
            for i, (r, value) in enumerate(zip(requests, rewards, strict=False))
        ]  # fmt: skip
        self.made |= {t.id: t for t in made}
        return made

    @asynccontextmanager
    async def running_producer(self) -> AsyncIterator[None]:
        running = asyncio.create_task(self.producer.run())
        await settle()
        yield
        running.cancel()
        await asyncio.wait([running])

    async def finish(self, *names: str, rewards: tuple[float, ...] = (0.0, 1.0)) -> None:
        for name in names:
            self.running.pop(name).set_result(rewards)
        await settle()

    async def train(self) -> list[str]:
        """Take a batch, which must be there, and train on it."""
        async with asyncio.timeout(60):
            batch = await self.producer.next_batch(self.producer.steps_done + 1)
        names = [t.task_id for t in self.producer.require_rollouts(batch, self.producer.steps_done + 1)]
        self.engine.version += 1
        self.producer.close_step()
        self.producer.admit_more()
        await settle()
        return list(dict.fromkeys(names))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@asynccontextmanager
async def scene(
    tasks: Sequence[int] = range(20), planner: type[Planner] = Planner, **settings: Any
) -> AsyncIterator[Scene]:
    made = Scene(settings, tasks, planner)
    async with made.running_producer():
        yield made


async def test_a_synchronous_step_is_planned_at_once_and_sees_the_step_before() -> None:
    async with scene(steps=2) as s:
        assert list(s.running) == ["t0", "t1"]
        await s.finish("t1", "t0")
        assert list(s.running) == [], "nothing begins before the policy is trained"
        assert await s.train() == ["t0", "t1"]
        assert s.algorithm.planned == [(1, 0, ["t0", "t1"], [], []), (2, 0, ["t2", "t3"], ["t0", "t1"], [])]
        await s.finish("t2", "t3")
        assert await s.train() == ["t2", "t3"]
        assert len(s.algorithm.planned) == 2, "the last step is over"


async def test_the_next_step_is_sampled_while_this_one_is_trained_on() -> None:
    async with scene(async_ratio=1) as s:
        assert list(s.running) == ["t0", "t1", "t2", "t3"]
        assert [(step, place) for step, place, *_ in s.algorithm.planned] == [(1, 0), (2, 0)]
        await s.finish("t0", "t2", "t3")
        assert s.buffer.ready == 3
        await s.finish("t1")
        assert await s.train() == ["t0", "t1"]
        assert list(s.running) == ["t4", "t5"]
        assert await s.train() == ["t2", "t3"]
        assert list(s.running) == ["t4", "t5"], "three steps of two groups are all that is needed"


async def test_a_task_that_comes_twice_in_a_step_is_planned_twice() -> None:
    async with scene(tasks=[0, 0], steps=1) as s:
        assert s.algorithm.planned == [(1, 0, ["t0"], [], []), (1, 1, ["t0"], [], [])]


async def test_even_groups_give_way_to_the_next_tasks_as_often_as_the_run_file_says() -> None:
    async with scene(steps=1, resample_even_groups=2) as s:
        await s.finish("t0", rewards=(1.0, 1.0))
        assert list(s.running) == ["t1", "t2"]
        await s.finish("t2", rewards=(0.0, 0.0))
        await s.finish("t3", rewards=(0.5, 0.5))
        assert list(s.running) == ["t1"], "two were replaced"
        await s.finish("t1")
        assert await s.train() == ["t1", "t3"]
        assert s.producer.metrics() == {"even_groups": 3.0, "replaced_groups": 2.0, "late_groups": 0.0}
        assert s.producer.metrics() == {"even_groups": 0.0, "replaced_groups": 0.0, "late_groups": 0.0}
        assert s.algorithm.planned[1:] == [(1, 2, ["t2"], [], []), (1, 3, ["t3"], [], [])]


async def test_a_late_group_is_stored_as_such_and_its_task_comes_once_more() -> None:
    async with scene(steps=4, prompts_per_step=1, async_ratio=1, patience_s=10) as s:
        await s.finish("t1")
        assert await s.train() == ["t1"]
        await s.finish("t2")
        waiting = asyncio.create_task(s.train())
        await settle()
        assert not waiting.done(), "t0 began at version 0, and this is version 1"
        waiting.cancel()
        s.clock = 10
        slow = s.running["t0"]
        assert await s.train() == ["t2"]
        assert s.events == [{"ordinal": 0, "task": "t0", "again": False}]
        assert [tasks for _, _, tasks, *_ in s.algorithm.planned] == [["t0"], ["t1"], ["t2"], ["t0"], ["t3"]]
        slow.set_result((0.0, 1.0))
        await settle()
        assert s.rejected == [("1.0.t0.0", "late"), ("1.0.t0.1", "late")]
        assert s.producer.metrics()["late_groups"] == 1.0
        await s.finish("t3")
        assert await s.train() == ["t3"]
        s.clock = 30
        assert s.buffer.open == 1
        await s.finish("t0")
        assert await s.train() == ["t0"]


async def test_rollouts_that_were_given_up_are_reported_with_their_group() -> None:
    async with scene(async_ratio=1, prompts_per_step=1) as s:
        s.given_up |= {"1.0.t0": Counter({"sandbox failure": 1}), "2.0.t1": Counter({"sandbox failure": 2})}
        await s.finish("t0", rewards=(1.0,))
        assert await s.train() == ["t0"]
        assert s.algorithm.planned[-1] == (3, 0, ["t2"], ["t0"], ["1.0.t0"])
        assert list(s.given_up) == ["2.0.t1"], "its group has not finished"


@pytest.mark.parametrize("reason", ["sandbox failure", "replay failure"])
async def test_a_step_without_a_rollout_ends_the_run_unless_replays_were_lost(reason: str) -> None:
    async with scene(steps=1) as s:
        s.given_up |= {"1.0.t0": Counter({reason: 2})}
        await s.finish("t0", "t1", rewards=())
        if reason == "replay failure":
            assert await s.train() == []
        else:
            with pytest.raises(AleError, match="No rollout of step 1 can be trusted: 2 x sandbox failure"):
                await s.train()


async def test_a_plan_for_a_task_that_was_not_asked_for_is_a_mistake_of_the_algorithm() -> None:
    class Stray(Planner):
        def plan(self, tasks: Sequence[Task], history: RolloutHistory) -> list[RolloutRequest]:
            return super().plan([task(77)], history)

    made = Scene({}, range(9), Stray)
    with pytest.raises(ExceptionGroup) as caught:
        await made.producer.run()
    assert caught.group_contains(PluginError, match="'planner' plans a rollout of the task 't77'")


async def test_production_goes_on_from_a_checkpoint_as_if_it_had_not_been_interrupted() -> None:
    settings: dict[str, Any] = {"steps": 4, "async_ratio": 2, "ahead": 2}
    async with scene(**settings) as s:
        await s.finish("t1", "t3", "t4")
        assert await s.train() == ["t1", "t3"]
        state = json.loads(json.dumps(s.producer.state()))
    again = Scene(settings, range(20))
    again.made, again.engine.version = s.made, 1
    again.producer.restore(state, 1)
    async with again.running_producer():
        assert sorted(again.running) == ["t0", "t2", "t5", "t6", "t7"], "t4 is finished"
        assert again.algorithm.planned == [], "their requests are in the checkpoint"
        await again.finish("t0")
        assert await again.train() == ["t0", "t4"]
        await again.finish("t2", "t5", "t6", "t7")
        assert await again.train() == ["t2", "t5"]
        assert await again.train() == ["t6", "t7"]


async def test_groups_of_which_no_rollout_could_be_trusted_are_made_again_after_a_restart() -> None:
    """Whatever was at fault may be over; else the step that failed would fail at once, for ever."""
    async with scene(steps=1) as s:
        await s.finish("t0", "t1", rewards=())
        with pytest.raises(AleError, match="No rollout of step 1 can be trusted"):
            await s.train()
        state = json.loads(json.dumps(s.producer.state()))
    again = Scene({"steps": 1}, range(20))
    again.producer.restore(state, 0)
    async with again.running_producer():
        assert sorted(again.running) == ["t0", "t1"]
        await again.finish("t0", "t1")
        assert await again.train() == ["t0", "t1"]


async def test_a_checkpoint_while_groups_are_prepared_plans_them_again_from_the_same_history() -> None:
    class Prepares(Planner):
        def prepare(self, tasks: Sequence[Task], history: RolloutHistory) -> list[RolloutRequest]:
            return [] if history.prepared or history.step == 1 else [RolloutRequest(task(70), "prepared", 0)]

    async with scene(planner=Prepares, steps=2) as s:
        s.given_up["1.0.t0"] = Counter({"sandbox failure": 1})
        await s.finish("t0", "t1")
        assert await s.train() == ["t0", "t1"]
        assert list(s.running) == ["t70"]
        state = json.loads(json.dumps(s.producer.state()))
        assert [one["step"] for one in state["open"]] == [2, 2]
        await s.finish("t70")
        whole = s.algorithm.planned[1]
    again = Scene({"steps": 2}, range(20), Prepares)
    again.made, again.engine.version = s.made, 1
    again.producer.restore(state, 1)
    async with again.running_producer():
        await again.finish("t70")
        step, place, _, seen, rejected = again.algorithm.planned[0]
        assert (step, place, seen, rejected) == (whole[0], whole[1], whole[3], whole[4])
        assert seen == ["t0", "t1"]
        assert rejected == ["1.0.t0"]


async def test_a_late_task_is_still_to_come_after_a_restart() -> None:
    settings: dict[str, Any] = {"steps": 5, "prompts_per_step": 1, "async_ratio": 1, "patience_s": 10}
    async with scene(**settings) as s:
        await s.finish("t1")
        assert await s.train() == ["t1"]
        await s.finish("t2")
        assert s.buffer.take(1) is None
        s.clock = 10
        s.producer._expire()
        state = s.producer.state()
    again = Scene(settings, range(20))
    again.made, again.engine.version = s.made, 1
    again.producer.restore(state, 1)
    async with again.running_producer():
        assert await again.train() == ["t2"]
        assert sorted(again.running) == ["t0", "t3"]
        assert not again.producer._returned


async def test_groups_that_begin_on_an_experts_path_are_planned_again_after_a_restart() -> None:
    class Led(Planner):
        def plan(self, tasks: Sequence[Task], history: RolloutHistory) -> list[RolloutRequest]:
            return [replace(r, start=Demonstration(lambda: None)) for r in super().plan(tasks, history)]

    async with scene(planner=Led, async_ratio=1) as s:
        state = s.producer.state()
    again = Scene({"async_ratio": 1}, range(20), Led)
    again.producer.restore(state, 0)
    async with again.running_producer():
        assert sorted(again.running) == ["t0", "t1", "t2", "t3"]
        assert [(step, place, tasks) for step, place, tasks, *_ in again.algorithm.planned] == [
            (1, 2, ["t0"]),
            (1, 3, ["t1"]),
            (2, 2, ["t2"]),
            (2, 3, ["t3"]),
        ]
