"""These tests check what an algorithm rolls out, trains on, and keeps in a checkpoint. They need no model."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields, replace

import numpy as np
import pytest

from ale.messages import Message
from ale.specs.algorithm import Algorithm, RolloutHistory, RolloutRequest
from ale.specs.start import Reply, Start
from ale.specs.trainer import TrainBatch
from ale.task import Task, TaskTests
from ale.trajectory import Score
from ale_testing.async_tests import async_test
from ale_testing.plugin_under_test import Subject
from ale_testing.sample_batches import make_unscored, trajectory, two_groups, with_side_call
from ale_train.batches import split

TASKS = [Task(id=f"task-{i}", instruction="Do it.", tests=TaskTests(command="true")) for i in range(3)]


@asynccontextmanager
async def opened(subject: Subject) -> AsyncIterator[Algorithm]:
    """The algorithm, started."""
    async with subject.build() as algorithm:
        yield algorithm


def after(history: RolloutHistory, requests: Sequence[RolloutRequest]) -> RolloutHistory:
    """What is known when these rollouts were made, every other one a success."""
    made = [
        replace(
            trajectory(i, reward=float(i % 2), group=r.group, chunks=r.start_chunk + 1),
            id=r.group + str(i),
            task_id=r.task.id,
            step=history.step,
            start_chunk=r.start_chunk,
        )
        for i, r in enumerate(requests)
    ]
    return replace(history, step=history.step + 1, trajectories=made)


def by_sequence(batch: TrainBatch) -> list[tuple[tuple[int, ...], dict[int, tuple[float, int, int]]]]:
    """The sequences of a batch: tokens, and of each that carries loss, by its place, its chunk's return, position and
    count."""
    found, at, c = [], 0, batch.chunks
    for length in batch.lengths:
        ids = batch.chunk_ids[at : at + length]
        worth = {k: (float(c.returns[i]), int(c.position[i]), int(c.count[i])) for k, i in enumerate(ids) if i >= 0}
        found.append((tuple(int(x) for x in batch.token_ids[at : at + length]), worth))
        at += length
    return found


@async_test
async def test_plan_asks_for_group_size_rollouts_of_each_task(subject: Subject) -> None:
    async with opened(subject) as algorithm:
        history = RolloutHistory(step=1, seed=1)
        requests = algorithm.plan(TASKS, history)
        assert requests, "plan() must ask for rollouts"
        assert algorithm.group_size >= 1, "group_size is at least 1"
        assert {r.task.id for r in requests} <= {t.id for t in TASKS}, (
            "plan() must ask for rollouts of the tasks it was given"
        )
        assert len({r.seed for r in requests}) == len(requests), "every rollout must have a seed of its own"
        for request in requests:
            others = {r.task.id for r in requests if r.group == request.group}
            assert others == {request.task.id}, f"a group must hold one task; '{request.group}' holds {others}"
        key = [(r.task.id, r.group, r.seed, r.start_chunk) for r in requests]
        assert key == [(r.task.id, r.group, r.seed, r.start_chunk) for r in algorithm.plan(TASKS, history)], (
            "plan() must give the same requests for the same tasks and history"
        )
        later = {r.seed for r in algorithm.plan(TASKS, replace(history, step=2))}
        assert not later & {r.seed for r in requests}, "another step must have other seeds"


@async_test
async def test_rollouts_start_at_valid_points_and_leave_a_turn_to_the_policy(subject: Subject) -> None:
    async with opened(subject) as algorithm:
        shown = [replace(trajectory(i, reward=1.0, chunks=3 + i), task_id=TASKS[i].id) for i in (0, 1)]
        longest = {t.task_id: len(t.chunks) for t in shown}
        history = RolloutHistory(step=1, seed=1, demonstrations=shown)
        for _ in range(3):
            requests = algorithm.plan(TASKS, history)
            again = algorithm.plan(TASKS, history)
            assert requests == again, "plan() must give the same requests for the same tasks and history"
            for r in requests:
                where = f"a rollout of '{r.task.id}' that starts after {r.start_chunk} chunks"
                if r.start is None:
                    continue
                assert isinstance(r.start, Start), f"{where} must have an ale.specs.start.Start, not {r.start!r:.100}"
                assert r.start.task_id in (None, r.task.id), f"{where} has a start of '{r.start.task_id}'"
                most = longest.get(r.task.id, 0)
                assert 0 <= r.start_chunk < max(1, most), f"{where} leaves nothing to the policy: {most} are known"
            history = after(history, requests)
            for t in history.trajectories:
                longest[t.task_id] = max(longest.get(t.task_id, 0), len(t.chunks))


@async_test
async def test_prepare_stops_asking_even_if_nothing_succeeds(subject: Subject) -> None:
    async def answer(messages: object, tools: object) -> Reply:
        return Reply(Message("assistant", "Done."))

    async with opened(subject) as algorithm:
        history = RolloutHistory(step=1, seed=1, demonstrator=lambda task, seed: answer)
        for _ in range(100):
            requests = algorithm.prepare(TASKS, history)
            if not requests:
                break
            assert {r.task.id for r in requests} <= {t.id for t in TASKS}, (
                "prepare() must ask for rollouts of the tasks it was given"
            )
            failed = [replace(trajectory(i, reward=0.0), task_id=r.task.id) for i, r in enumerate(requests)]
            history = replace(history, prepared=failed)
        assert not requests, "prepare() must come to an end, also where nothing that it asks for succeeds"
        assert algorithm.plan(TASKS, history), "plan() must ask for rollouts"


@async_test
async def test_a_batch_is_well_formed(subject: Subject) -> None:
    async with opened(subject) as algorithm:
        given = two_groups()
        batch = algorithm.batch(given)
        assert batch is not None, "rollouts with successes and failures must give something to train on"
        n, c = len(batch.token_ids), len(batch.chunks.returns)
        assert batch.lengths.sum() == n, f"lengths must add up to the tokens: {batch.lengths.sum()} and {n}"
        assert len(batch.chunk_ids) == len(batch.engine_logprobs) == n, (
            "chunk_ids and engine_logprobs have an entry a token"
        )
        assert len(batch.trajectory) == len(batch.lengths), "trajectory has an entry a sequence"
        assert (np.diff(batch.trajectory) >= 0).all(), (
            "trajectory indices must not fall: sequences of one stay together"
        )
        assert batch.chunk_ids.min() >= -1, "chunk_ids are -1 or a row of chunks"
        assert batch.chunk_ids.max() < c, "chunk_ids are -1 or a row of chunks"
        assert (batch.engine_logprobs[batch.chunk_ids < 0] == 0).all(), "a token without loss has engine_logprobs 0"
        assert math.isfinite(batch.normalizer), "the normalizer must be finite"
        assert batch.normalizer > 0, f"the normalizer must be above 0, not {batch.normalizer}"
        for field in fields(batch.chunks):
            assert len(getattr(batch.chunks, field.name)) == c, f"chunks.{field.name} must have an entry a chunk"
        assert np.isfinite(batch.chunks.returns).all(), "returns must be finite"


@async_test
async def test_a_batch_can_be_split_between_groups(subject: Subject) -> None:
    async with opened(subject) as algorithm:
        batch = algorithm.batch(two_groups())
        assert batch is not None
        table = batch.trajectories
        assert table is not None, (
            "batch() must give TrainBatch.trajectories, so that a step can be cut into rl.updates_per_step updates: "
            "make it with ale_train.batches.pack"
        )
        assert len(table.group) == len(table.weight) > batch.trajectory.max(), "trajectories has a row a trajectory"
        assert (table.weight >= 0).all(), "a trajectory counts 0 or more in the normalizer"
        parts = split(batch, 2, seed=1)
        cut = [sequence for part in parts for sequence in by_sequence(part)]
        assert sorted(cut, key=repr) == sorted(by_sequence(batch), key=repr), (
            "the updates of a step must hold its sequences, each once, with the returns that batch() gave them"
        )
        apart = abs(sum(part.normalizer for part in parts) - batch.normalizer)
        assert apart < 1e-6 * batch.normalizer, "the weights of the trajectories must add up to the normalizer"


@async_test
async def test_only_tokens_that_the_policy_sampled_carry_loss(subject: Subject) -> None:
    async with opened(subject) as algorithm:
        given = two_groups()
        batch = algorithm.batch(given)
        assert batch is not None
        sequences = [
            (s.token_ids, {k for chunk in t.chunks if chunk.sequence == i for k in range(chunk.start, chunk.end)})
            for t in given
            for i, s in enumerate(t.sequences)
        ]
        for tokens, trained in by_sequence(batch):  # what follows the last trained token may be left out
            allowed = [inside for ids, inside in sequences if ids[: len(tokens)] == tokens]
            assert allowed, "a batch must hold the trajectories' sequences, token for token"
            assert any(set(trained) <= inside for inside in allowed), (
                "tokens outside chunks (prompt, tool output) must carry no loss"
            )


@async_test
async def test_a_side_call_carries_no_loss_and_does_not_count_as_a_turn(subject: Subject) -> None:
    async with opened(subject) as algorithm:
        given, calling = two_groups(), with_side_call(17, reward=1.0)
        without = algorithm.batch([*given, trajectory(17, reward=1.0)])
        beside = algorithm.batch([*given, calling])
        assert without is not None
        assert beside is not None
        title = calling.sequences[1].token_ids
        asides = [s for s in by_sequence(beside) if s[0] == title[: len(s[0])]]
        assert not any(trained for _, trained in asides), (
            "the answer to a side call (a title, a summary) must carry no loss: train on Trajectory.turns, not on all "
            "chunks"
        )
        assert [s for s in by_sequence(beside) if s not in asides] == by_sequence(without), (
            "a side call is no step: returns, positions and counts must be as without it, of Trajectory.turns alone"
        )


@async_test
async def test_a_missing_reward_does_not_count_as_zero(subject: Subject) -> None:
    async with opened(subject) as algorithm:
        given, lost = two_groups(), make_unscored(23)
        without, beside = algorithm.batch(given), algorithm.batch([*given, lost])
        assert without is not None
        assert beside is not None
        same = [s for s in by_sequence(beside) if s[0] != lost.sequences[0].token_ids[: len(s[0])]]
        assert same == by_sequence(without), "a rollout whose sandbox was lost must change nothing for the others"
        turned = algorithm.batch([replace(t, reward=Score(float(not t.passed), not t.passed)) for t in given])
        if turned is None or by_sequence(turned) != same:  # it learns from rewards
            assert len(same) == len(beside.lengths), "a rollout without a reward must carry no loss"


@async_test
async def test_no_usable_rollouts_give_no_batch(subject: Subject) -> None:
    async with opened(subject) as algorithm:
        assert algorithm.batch([]) is None, "batch() of no trajectories must be None"
        empty = replace(trajectory(0, reward=0.0), chunks=())
        assert algorithm.batch([empty]) is None, "batch() of trajectories without chunks must be None"


@async_test
async def test_batch_has_no_side_effects_and_is_deterministic(subject: Subject) -> None:
    async with opened(subject) as algorithm:
        given = two_groups()
        kept = copy.deepcopy(given)
        before = json.dumps(algorithm.state())
        first, second = algorithm.batch(given), algorithm.batch(given)
        assert given == kept, "batch() must not change the trajectories"
        assert json.dumps(algorithm.state()) == before, "batch() must not change the algorithm's state()"
        assert first is not None
        assert second is not None
        for name in ("token_ids", "chunk_ids", "engine_logprobs"):
            assert np.array_equal(getattr(first, name), getattr(second, name)), (
                f"batch() must give the same {name} each time"
            )
        assert first.metrics == second.metrics, "batch() must give the same metrics each time: it counts nothing on"


@async_test
async def test_a_restored_algorithm_continues_as_the_saved_one(subject: Subject) -> None:
    known = [replace(trajectory(9, reward=1.0, chunks=4), task_id=task.id) for task in TASKS[:2]]
    async with opened(subject) as algorithm, opened(subject) as other:
        history = RolloutHistory(step=1, seed=1, demonstrations=known)
        for _ in range(3):
            history = after(history, algorithm.plan(TASKS, history))
        try:
            state = json.loads(json.dumps(algorithm.state()))
        except TypeError as error:
            pytest.fail(f"state() must be plain JSON: {error}")
        other.restore(state)
        for _ in range(3):
            requests = algorithm.plan(TASKS, history)
            assert other.plan(TASKS, history) == requests, (
                "an algorithm that was given the state() of another must plan as that one does"
            )
            history = after(history, requests)
