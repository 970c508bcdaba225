"""Deliberately wrong algorithms: each breaks one rule of the contract, and the kit says which."""

from __future__ import annotations

from pathlib import Path

import pytest
from wrong import Wrong, assert_found

pytestmark = [pytest.mark.slow, pytest.mark.bwrap]

ALGORITHM = """
from ale_ipa import IPA
from ale_ipa.loss import ChunkLoss
from ale_train.starts import ExpertReplay
from dataclasses import dataclass, fields, replace
import numpy as np
def vars_of(loss):
    return {f.name: getattr(loss, f.name) for f in fields(loss)}
class Fixed(IPA):
"""

WRONG = {
    "the prompt is trained on": Wrong(
        "algorithm",
        ALGORITHM
        + """
    def batch(self, trajectories):
        made = super().batch(trajectories)
        return made and replace(made, chunk_ids=np.maximum(made.chunk_ids, 0))
""",
        "test_only_tokens_that_the_policy_sampled_carry_loss",
        "tokens outside chunks (prompt, tool output) must carry no loss",
    ),
    "a title is trained on": Wrong(
        "algorithm",
        ALGORITHM
        + """
    def batch(self, trajectories):
        return super().batch([replace(t, chunks=tuple(replace(c, side=False) for c in t.chunks)) for t in trajectories])
""",
        "test_a_side_call_carries_no_loss_and_does_not_count_as_a_turn",
        "the answer to a side call (a title, a summary) must carry no loss",
    ),
    "a title is a step": Wrong(
        "algorithm",
        ALGORITHM
        + """
    def batch(self, trajectories):
        made = super().batch(trajectories)
        counts = np.array([len(trajectories[i].chunks) for i in made.chunks.trajectory])
        return replace(made, chunks=replace(made.chunks, count=counts))
""",
        "test_a_side_call_carries_no_loss_and_does_not_count_as_a_turn",
        "a side call is no step",
    ),
    "an entropy that is a sum": Wrong(
        "algorithm",
        ALGORITHM
        + """
    @property
    def loss(self):
        return Summing(**vars_of(super().loss))
class Summing(ChunkLoss):
    def metrics(self, totals):
        return {**super().metrics(totals), "entropy": totals["entropy_sum"]}
""",
        "test_a_mean_entropy_is_one_over_the_tokens_with_loss",
        "must be the mean over the tokens with loss: 0.5 where each has 0.5",
    ),
    "seeds that repeat": Wrong(
        "algorithm",
        ALGORITHM
        + """
    def plan(self, tasks, history):
        return [replace(r, seed=1) for r in super().plan(tasks, history)]
""",
        "test_plan_asks_for_group_size_rollouts_of_each_task",
        "every rollout must have a seed of its own",
    ),
    "a start that is none of the task's": Wrong(
        "algorithm",
        ALGORITHM
        + """
    def plan(self, tasks, history):
        paths = [ExpertReplay(t, 1) for t in history.demonstrations]
        return [replace(r, start=paths[0]) if paths else r for r in super().plan(tasks, history)]
""",
        "test_rollouts_start_at_valid_points_and_leave_a_turn_to_the_policy",
        "has a start of 'task-0'",
    ),
    "a mean over the micro-batch": Wrong(
        "algorithm",
        ALGORITHM
        + """
    @property
    def loss(self):
        return OfMicroBatch(**vars_of(super().loss))
class OfMicroBatch(ChunkLoss):
    def __call__(self, inputs):
        out = super().__call__(inputs)
        return replace(out, loss=out.loss * inputs.normalizer / len(inputs.logprobs))
""",
        "test_micro_batches_add_up_to_the_batch",
        "the losses of micro-batches must add up to the batch's",
    ),
    "a loss that holds the algorithm": Wrong(
        "algorithm",
        ALGORITHM
        + """
    @property
    def loss(self):
        return Holding(**vars_of(super().loss), algorithm=lambda: self)
@dataclass(frozen=True)
class Holding(ChunkLoss):
    algorithm: object = None
""",
        "test_the_loss_can_be_pickled_into_another_process",
        "the loss must be picklable",
    ),
    "a loss that is a method": Wrong(
        "algorithm",
        ALGORITHM
        + """
    def loss(self, inputs):
        return super().loss(inputs)
""",
        "test_the_loss_can_be_pickled_into_another_process",
        "the loss must be a frozen dataclass of settings",
    ),
    "a batch that cannot be cut": Wrong(
        "algorithm",
        ALGORITHM
        + """
    def batch(self, trajectories):
        out = super().batch(trajectories)
        return out and replace(out, trajectories=None)
""",
        "test_a_batch_can_be_split_between_groups",
        "batch() must give TrainBatch.trajectories",
    ),
    "a normalizer of its own": Wrong(
        "algorithm",
        ALGORITHM
        + """
    def batch(self, trajectories):
        out = super().batch(trajectories)
        table = out and replace(out.trajectories, weight=out.trajectories.weight * 0)
        return out and replace(out, trajectories=table)
""",
        "test_a_batch_can_be_split_between_groups",
        "the weights of the trajectories must add up to the normalizer",
    ),
    "a counter in batch": Wrong(
        "algorithm",
        ALGORITHM
        + """
    made = 0
    def batch(self, trajectories):
        self.made += 1
        out = super().batch(trajectories)
        return out and replace(out, metrics={"made": float(self.made)})
""",
        "test_batch_has_no_side_effects_and_is_deterministic",
        "batch() must give the same metrics each time",
    ),
    "preparations without end": Wrong(
        "algorithm",
        ALGORITHM
        + """
    def prepare(self, tasks, history):
        return super().plan(tasks, history)
""",
        "test_prepare_stops_asking_even_if_nothing_succeeds",
        "prepare() must come to an end",
    ),
    "a state that is not all": Wrong(
        "algorithm",
        ALGORITHM
        + """
    def state(self):
        return {**super().state(), "pointers": {}, "placed": {}}
""",
        "test_a_restored_algorithm_continues_as_the_saved_one",
        "must plan as that one does",
        "experts: {}\nstart: rollback\nwindow: 1",
    ),
    "a lost sandbox is a failure": Wrong(
        "algorithm",
        ALGORITHM
        + """
    def batch(self, trajectories):
        failed = replace(trajectories[0].reward, value=0.0, passed=False)
        return super().batch([replace(t, failure=None, reward=t.reward or failed) for t in trajectories])
""",
        "test_a_missing_reward_does_not_count_as_zero",
        "a rollout without a reward must carry no loss",
        "negative_signal: -0.2",
    ),
    "a lost sandbox moves the mean": Wrong(
        "algorithm",
        ALGORITHM
        + """
    def batch(self, trajectories):
        lost = sum(t.reward is None for t in trajectories)
        made = super().batch(trajectories)
        return made and replace(made, chunks=replace(made.chunks, returns=made.chunks.returns + lost))
""",
        "test_a_missing_reward_does_not_count_as_zero",
        "must change nothing for the others",
    ),
    "the first context only": Wrong(
        "algorithm",
        ALGORITHM
        + """
    def batch(self, trajectories):
        def first(t):
            return replace(t, sequences=t.sequences[:1], chunks=tuple(replace(c, sequence=0) for c in t.chunks))
        return super().batch([first(t) for t in trajectories])
""",
        "test_only_tokens_that_the_policy_sampled_carry_loss",
        "tokens outside chunks (prompt, tool output) must carry no loss",
    ),
    "a batch that teaches nothing": Wrong(
        "algorithm",
        ALGORITHM
        + """
    def batch(self, trajectories):
        def solved(t):
            return t if t.reward is None else replace(t, reward=replace(t.reward, value=1.0, passed=True))
        made = super().batch([solved(t) for t in trajectories])
        return made and replace(made, chunks=replace(made.chunks, returns=made.chunks.returns * 0))
""",
        "test_a_batch_without_gradient_is_none",
        "batch() gave one that carries no gradient: it must be None",
    ),
    "an empty batch": Wrong(
        "algorithm",
        ALGORITHM
        + """
    def batch(self, trajectories):
        return super().batch(trajectories) if trajectories else 0
""",
        "test_no_usable_rollouts_give_no_batch",
        "batch() of no trajectories must be None",
    ),
}


@pytest.mark.parametrize("what", WRONG, ids=lambda what: what.replace(" ", "-"))
def test_the_kit_says_what_is_wrong(what: str, tmp_path: Path) -> None:
    assert_found(WRONG[what], tmp_path)
