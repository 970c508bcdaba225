"""Demonstrations by the environment's own expert, and rollouts that start on an expert's path."""

from __future__ import annotations

from collections.abc import Callable

from env_table import Table, first, world

from ale.specs.start import Demonstration
from ale_train.starts import ExpertReplay

Tables = Callable[..., Table]
ACT = "<act>(.*?)</act>"


async def test_the_expert_plays_with_its_wrong_turns_and_the_same_seed_does_the_same(table: Tables) -> None:
    here = table()
    async with world("Shown", action=ACT) as tasks:
        (task,) = first(tasks)
        shown = [await here.roll(task, Demonstration(lambda s=seed: tasks.demonstrator(task, s))) for seed in (1, 1, 2)]
    assert [t.failure for t in shown] == [None] * 3
    acts = [[o.arguments["action"] for o in t.observations] for t in shown]
    assert acts[0] == acts[1] != acts[2]
    assert all(not c.sampled for t in shown for c in t.chunks)
    assert all(t.ended_by == "terminated" for t in shown)


async def test_an_environment_without_an_expert_has_no_demonstrator() -> None:
    async with world("Sum") as tasks:
        assert tasks.demonstrator(first(tasks)[0], 1) is None
    assert world("Sum").provides(world("Sum").config) == {"demonstrations"}


async def test_an_environment_that_cannot_be_repeated_is_found_out(table: Tables) -> None:
    """The expert counts on other answers than come."""
    async with world("Shown", action=ACT) as tasks:
        (task,) = first(tasks)
        other = task.model_copy(update={"metadata": {**task.metadata, "seed": 99}})
        demonstrator = tasks.demonstrator(other, 1)
        played = await table().roll(task, Demonstration(lambda: demonstrator))
    assert played.failure is not None
    assert "after reset(seed), the same actions must have the same answers" in played.failure.message


async def test_a_rollout_starts_on_an_experts_path(table: Tables) -> None:
    here = table()
    (task,) = first(world("Sum"))
    expert = await here.play(task, ["0.5", "1", "1.5"])
    for chunks in range(4):
        start = ExpertReplay(expert, min(chunks, 2))
        rolled = await here.roll(task, start, ["3"])
        assert rolled.failure is None, rolled.failure
        assert rolled.start_chunk == min(chunks, 2)
        replayed = [o.text for o in rolled.observations][: rolled.start_chunk]
        assert replayed == [o.text for o in expert.observations][: rolled.start_chunk]
        assert rolled.observations[-1].reward == 3.0


async def test_a_start_in_another_environment_diverges(table: Tables) -> None:
    here = table()
    one, two = first(world("Sum"), 2)
    expert = await here.play(one, ["0.5", "3"])
    rolled = await here.roll(two, ExpertReplay(expert, 1), ["3"])
    assert rolled.failure is not None
    assert rolled.failure.kind == "replay"
