"""What of a rollout is trained on, and with which signal."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.loss_samples import rollout

from ale.errors import PluginError
from ale.specs.trainer import LossInput, TrainBatch
from ale.trajectory import Chunk, ChunkError, Failure, Score, Sequence, Trajectory
from ale_ipa import IPA
from ale_ipa.returns import signals

Make = Callable[..., IPA]
Build = Callable[..., Trajectory]
Inputs = Callable[..., LossInput]


def test_chunks_are_counted_over_all_sequences_of_the_trajectory(make: Make, build: Build) -> None:
    sequences = (Sequence((0, 1, 2, 3, 4), ()), Sequence((0, 1, 9, 9), ()))
    chunks = (
        Chunk(0, 0, 1, 2, (-1.0,), (0,), "stop"),
        Chunk(1, 1, 2, 4, (-1.0, -1.0), (0, 0), "stop"),
        Chunk(2, 0, 3, 5, (-1.0, -1.0), (0, 0), "stop"),
    )
    batch = make(gamma=0.5).batch([build("t", 1.0, sequences=sequences, chunks=chunks)])
    assert batch is not None
    rows = {int(p): float(g) for p, g in zip(batch.chunks.position, batch.chunks.returns, strict=True)}
    assert rows == {0: 0.25, 1: 0.5, 2: 1.0}
    assert batch.lengths.tolist() == [5, 4]
    assert batch.trajectory.tolist() == [0, 0]


def test_error_turns_and_truncated_turns_are_data(make: Make, build: Build) -> None:
    chunks = (
        Chunk(0, 0, 1, 2, (-1.0,), (0,), "stop", error=ChunkError("illegal_call", "no such tool")),
        Chunk(1, 0, 3, 4, (-1.0,), (0,), "length", error=ChunkError("truncated", "cut off")),
    )
    batch = make().batch([build("t", 0.0, sequences=(Sequence((0, 1, 2, 3), ()),), chunks=chunks)])
    assert batch is not None
    assert batch.chunk_ids.tolist() == [-1, 0, -1, 1]


def test_an_empty_chunk_is_no_row(make: Make, build: Build) -> None:
    chunks = (Chunk(0, 0, 1, 1, (), (), "abort"), Chunk(1, 0, 2, 3, (-1.0,), (0,), "stop"))
    batch = make(gamma=0.5).batch([build("t", 1.0, sequences=(Sequence((0, 1, 2), ()),), chunks=chunks)])
    assert batch is not None
    assert batch.chunks.returns.tolist() == [1.0]


@pytest.mark.parametrize(
    ("config", "returns", "positive"),
    [
        ({}, [1.0, 1.0, -0.05], [True, True, False]),
        ({"negative_signal": -1.0}, [1.0, 1.0, -1.0], [True, True, False]),
        ({"return_signal": "raw"}, [1.0, 0.25, 0.0], [True, True, False]),
        # T+ is what is above the group's mean: a rewarded rollout below it is pushed down, so its ratio is truncated.
        ({"return_signal": "group_centered"}, [0.5833333, -0.1666667, -0.4166667], [True, False, False]),
    ],
)
def test_signals_of_graded_rewards(
    make: Make, build: Build, config: dict[str, Any], returns: list[float], positive: list[bool]
) -> None:
    batch = make(**config).batch([build("a", 1.0), build("b", 0.25), build("c", 0.0)])
    assert batch is not None
    assert batch.chunks.returns.tolist() == pytest.approx(returns)
    assert batch.chunks.positive.tolist() == positive


def test_a_failure_with_a_share_of_the_reward_is_a_failure(make: Make, build: Build) -> None:
    half = replace(build("b", 0.5), reward=Score(0.5, False))
    batch = make().batch([build("a", 1.0), half])
    assert batch is not None
    assert batch.chunks.returns.tolist() == pytest.approx([1.0, -0.05])


def test_rollouts_that_share_an_id_are_still_two(make: Make, build: Build) -> None:
    batch = make(return_signal="group_centered").batch([build("same", 1.0), build("same", 0.0)])
    assert batch is not None
    assert batch.chunks.returns.tolist() == [0.5, -0.5]


def test_failed_environments_do_not_count_as_zeros_in_their_group(make: Make, build: Build) -> None:
    done = [build("a", 1.0), build("b", 1.0), build("c", None)]
    assert make(return_signal="group_centered").batch(done) is None
    assert signals("group_centered", done, 0.0).even == {0, 1}


def test_a_batch_in_which_nothing_was_learnt_is_none(make: Make, build: Build) -> None:
    assert make(return_signal="raw").batch([build("a", 0.0), build("b", 0.0)]) is None
    assert make(negative_signal=0.0).batch([build("a", 0.0)]) is None


@pytest.mark.parametrize(("normalization", "z"), [("token", 6.0), ("chunk", 4.0), ("trajectory", 3.0)])
def test_the_normalizer_counts_what_carries_loss(make: Make, build: Build, normalization: str, z: float) -> None:
    batch = make(normalization=normalization).batch([build("a", 1.0), build("b", 0.0, [2]), build("c", 0.0, [1, 2])])
    assert batch is not None
    assert batch.normalizer == z


def test_plans_ask_for_group_size_rollouts_of_each_task(make: Make) -> None:
    assert make(group_size=3).group_size == 3
    assert make().old_logprobs == "recompute"
    assert make(old_logprobs="engine").old_logprobs == "engine"


def batch_of_two(make: Make, build: Build) -> TrainBatch:
    batch = make().batch([build("a", 1.0, [2, 1]), build("b", 0.0, [1, 1])])
    assert batch is not None
    return batch


def test_missing_old_logprobs_are_refused_unless_the_engines_are_asked_for(
    make: Make, build: Build, loss_input: Inputs
) -> None:
    inputs = loss_input(batch_of_two(make, build), [-1.0] * 5, None)
    with pytest.raises(PluginError, match=r"fill TrainBatch\.old_logprobs"):
        make().loss(inputs)
    engine = make(old_logprobs="engine")
    metrics = engine.loss.metrics({k: float(v) for k, v in engine.loss(inputs).sums.items()})
    assert metrics["masked"] == 0.0


def test_metrics_are_means_over_the_right_tokens(make: Make, build: Build, loss_input: Inputs) -> None:
    # Engine: -0.1, -0.2, ... in each chunk. The second trajectory's first chunk disagrees with it and is masked.
    inputs = loss_input(batch_of_two(make, build), [-1.0, -1.0, -0.1, -1.0, -0.1], [-2.0, -2.0, -0.1, 3.0, -1.1])
    ipa = make()
    out = ipa.loss.metrics({k: float(v) for k, v in ipa.loss(inputs).sums.items()} | {"loss": 7.0})
    e = float(torch.tensor(1.0).exp())
    assert out["loss"] == 7.0
    assert (out["loss_tokens"], out["loss_chunks"]) == (5.0, 4.0)
    assert (out["positive"], out["masked"], out["masked_chunks"]) == pytest.approx((0.6, 0.2, 0.25))
    assert out["clipped"] == pytest.approx(0.5)
    ratios = [e, e, 1.0, float(torch.tensor(-4.0).exp()), e]
    assert out["ratio"] == pytest.approx(sum(ratios) / 5, rel=1e-5)
    assert out["ratio_std"] == pytest.approx(float(torch.tensor(ratios).std(correction=0)), rel=1e-4)
    assert out["kl_old"] == pytest.approx((3 * (e - 2) + (ratios[3] - 1 + 4)) / 5, rel=1e-5)
    assert out["entropy"] == 0.5


def test_sums_add_up_over_micro_batches(make: Make, build: Build, loss_input: Inputs) -> None:
    ipa, batch = make(), batch_of_two(make, build)
    new, old = [-1.0, -1.0, -0.1, -1.0, -0.1], [-2.0, -2.0, -0.1, 3.0, -1.1]
    whole = ipa.loss(loss_input(batch, new, old))
    parts = [ipa.loss(loss_input(batch, new, old, part)) for part in (slice(0, 3), slice(3, 5))]
    assert float(whole.loss) == pytest.approx(sum(float(p.loss) for p in parts))
    for name, value in whole.sums.items():
        assert float(value) == pytest.approx(sum(float(p.sums[name]) for p in parts))


def test_returns_are_not_rounded_to_the_narrow_type_of_log_probabilities(
    make: Make, build: Build, loss_input: Inputs
) -> None:
    ipa = make(gamma=0.95, old_logprobs="engine")
    batch = ipa.batch([build("a", 1.0, [300, 1])])
    assert batch is not None
    loss = ipa.loss(loss_input(batch, [-1.0078125] * 301, None, dtype="bfloat16")).loss
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(1.0078125 * (300 * 0.95 + 1) / 301, rel=1e-6)


def test_all_rows_of_a_trajectory_are_on_its_side(make: Make, loss_input: Inputs) -> None:
    """A sign taken per row of the batch would mix the two trajectories up: they have three rows each."""
    ipa = make(negative_signal=-1.0, gamma=1.0)
    rows = [[1], [2], [1]]
    batch = ipa.batch([rollout("a", 0.0, rows), rollout("b", 1.0, rows)])
    assert batch is not None
    assert batch.trajectory.tolist() == [0, 0, 0, 1, 1, 1]
    assert batch.chunks.positive.tolist() == [False] * 3 + [True] * 3
    inputs = loss_input(batch, [-1.0] * 8, [-2.0] * 4 + [-1.0] * 4)
    inputs.logprobs.requires_grad_()
    out = ipa.loss(inputs)
    out.loss.backward()
    assert [x > 0 for x in inputs.logprobs.grad.tolist()] == [True] * 4 + [False] * 4
    found = ipa.loss.metrics({k: float(v) for k, v in {**out.sums, **out.maxima}.items()})
    assert (found["positive"], found["negative"]) == (0.5, 0.5)
    assert (found["trajectories"], found["positive_trajectories"], found["negative_trajectories"]) == (2.0, 0.5, 0.5)
    assert found["ratio_max"] == pytest.approx(float(torch.tensor(1.0).exp()))


@pytest.mark.parametrize(("normalization", "z"), [("token", 2), ("chunk", 1), ("trajectory", 1)])
@pytest.mark.parametrize("kl_coef", [0.0, 1.0])
def test_a_mean_is_over_what_is_not_masked_and_that_of_the_penalty_over_all(
    make: Make, loss_input: Inputs, normalization: str, z: int, kl_coef: float
) -> None:
    """Prompt and environment tokens are not in Z, and neither is what the mismatch mask takes out."""
    ipa = make(normalization=normalization, gamma=1.0, kl_coef=kl_coef)
    batch = ipa.batch([rollout("a", 1.0, [[2]]), rollout("b", 1.0, [[1]])])
    assert batch is not None
    old = np.where(batch.chunk_ids == 1, 3.0, -1.0).astype(np.float32)  # the last token's engine says -1
    batch = ipa.loss.normalize(replace(batch, old_logprobs=old))
    assert (batch.normalizer, batch.reference_normalizer) == (z, 3 if normalization == "token" else 2)
    new, reference = [-1.0, -1.0, -7.0], [-1.0, -1.0, -8.0]
    found = float(ipa.loss(loss_input(batch, new, [-1.0, -1.0, 3.0], reference=reference)).loss)
    penalty = (math.exp(-1) - 1 + 1) / (3 if normalization == "token" else 2)
    assert found == pytest.approx(2 / z + kl_coef * penalty)


def test_where_all_is_masked_there_is_nothing_and_no_division_by_it(make: Make, loss_input: Inputs) -> None:
    ipa = make()
    batch = ipa.batch([rollout("a", 1.0, [[2]])])
    assert batch is not None
    batch = ipa.loss.normalize(replace(batch, old_logprobs=np.full(4, 3.0, np.float32)))
    assert batch.normalizer == 1
    assert float(ipa.loss(loss_input(batch, [-1.0, -1.0], [3.0, 3.0])).loss) == 0


@pytest.mark.parametrize(("normalization", "z"), [("token", 7.0), ("chunk", 5.0), ("trajectory", 4.0)])
@pytest.mark.parametrize("more", [{}, {"kl_coef": 0.1}, {"entropy_coef": 0.1}])
def test_groups_without_spread_count_in_z_and_carry_the_penalty_or_the_bonus_alone(
    make: Make, build: Build, normalization: str, z: float, more: dict[str, float]
) -> None:
    ipa = make(return_signal="group_centered", normalization=normalization, **more)
    done = [build("a", 1.0), build("b", 0.0), build("c", 1.0, [2, 1], group="h"), build("d", 1.0, [2], group="h")]
    batch = ipa.batch(done)
    assert batch is not None
    assert batch.normalizer == z
    assert batch.metrics == {"dropped_groups": 1.0}
    assert len(batch.lengths) == (4 if more else 2)
    assert batch.chunks.returns[batch.chunks.trajectory > 1].tolist() == ([0.0] * 3 if more else [])
    alone = ipa.batch(done[2:])
    assert (alone is not None) is bool(more), "neither fades as the policy gets good"


def test_a_pull_to_the_reference_wants_one(make: Make) -> None:
    assert (make(kl_coef=0.1).reference, make().reference) == (True, False)


def test_experts_are_not_held_near_the_reference(make: Make, build: Build, loss_input: Inputs) -> None:
    batch = batch_of_two(make, build)
    inputs = loss_input(batch, [-1.0] * 5, [-1.0] * 5, reference=[-3.0] * 5)
    inputs.chunks.sampled[0] = False  # the first chunk, of two tokens
    ipa = make(kl_coef=1.0)
    found = ipa.loss.metrics({k: float(v) for k, v in ipa.loss(inputs).sums.items()})
    k = float(torch.tensor(-2.0).exp()) - 1 + 2
    assert found["kl_ref"] == pytest.approx(k)
    assert float(ipa.loss(inputs).loss - make().loss(inputs).loss) == pytest.approx(3 * k / 5)


def test_adjacent_chunks_do_not_fuse(make: Make, build: Build) -> None:
    chunks = (Chunk(0, 0, 1, 3, (-1.0, -1.0), (0, 0), "stop"), Chunk(1, 0, 3, 5, (-1.0, -1.0), (0, 0), "stop"))
    t = build("t", 1.0, [1], sequences=(Sequence((0, 1, 2, 3, 4), ()),), chunks=chunks)
    batch = make(gamma=0.5).batch([t])
    assert batch is not None
    assert batch.chunk_ids.tolist() == [-1, 0, 0, 1, 1]
    assert batch.chunks.returns.tolist() == [0.5, 1.0]


def test_what_the_policy_did_not_sample_carries_no_loss_but_counts_for_the_discount(make: Make, build: Build) -> None:
    chunks = (Chunk(0, 0, 1, 2, (), (), "stop", sampled=False), Chunk(1, 0, 3, 4, (-1.0,), (0,), "stop"))
    t = build("t", 1.0, [1], sequences=(Sequence((0, 1, 2, 3), ()),), chunks=chunks)
    batch = make().batch([t])
    assert batch is not None
    assert batch.chunk_ids.tolist() == [-1, -1, -1, 0]
    assert (batch.chunks.position.tolist(), batch.chunks.count.tolist()) == ([1], [2])


def test_untrusted_rollouts_are_left_out_and_nothing_left_is_none(make: Make, build: Build) -> None:
    ipa = make()
    bad = [
        build("a", 1.0, [2], failure=Failure("sandbox", "gone", True)),
        build("b", 1.0, [2], rejected="veto"),
        build("c", None, [2]),
    ]
    assert ipa.batch(bad) is None
    assert ipa.batch([]) is None
    kept = ipa.batch([*bad, build("d", 1.0, [2])])
    assert kept is not None
    assert len(kept.lengths) == 1


def test_group_centered_signals_sum_to_zero_and_even_groups_are_dropped_and_counted(make: Make, build: Build) -> None:
    ipa = make(return_signal="group_centered", gamma=1.0)
    ts = [
        build("a", 1.0, [1], group="g"),
        build("b", 0.0, [1], group="g"),
        build("c", 1.0, [1], group="h"),
        build("d", 1.0, [1], group="h"),
    ]
    batch = ipa.batch(ts)
    assert batch is not None
    assert batch.chunks.returns.tolist() == [0.5, -0.5]
    assert batch.metrics == {"dropped_groups": 1.0}
    alone = ipa.batch(ts[:2])
    assert alone is not None
    assert alone.metrics == {}


@pytest.mark.parametrize(
    "config",
    [
        {"return_signal": "raw", "negative_signal": -0.1},
        {"level": "trajectory", "gamma": 0.9},
        {"old_logprobs": "engine", "mismatch_threshold": 3.0},
        {"return_signal": "group_centered", "group_size": 1},
        {"old_logprobs": "engine", "mask_level": "token"},
        {"mismatch_threshold": 1.0, "mismatch_lower": 1.5},
        {"level": "token", "return_level": "chunk", "ratio_level": "chunk", "mask_level": "chunk"},
        {"gama": 1},
    ],
)
def test_settings_that_would_do_nothing_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        IPA.Config(**config)


def with_steps(build: Build, name: str, rewards: list[float], passed: bool) -> Trajectory:
    made = build(name, 1.0, [1] * len(rewards), group="g")
    return replace(made, reward=Score(sum(rewards), passed, by_chunk=tuple(rewards)))


@pytest.mark.parametrize(
    ("settings", "returns"),
    [
        ({}, [1.0 * 0.25 + 0.5 + 0.5 * 0 + 0.25 * 1, 0.5 + 0.5 * 1, 1.0 + 1, -0.05 * 0.5 - 1, -0.05]),
        ({"step_weight": 0.0}, [0.25, 0.5, 1.0, -0.025, -0.05]),
        ({"step_weight": 2.0, "return_signal": "steps"}, [1.5, 1.0, 2.0, -2.0, 0.0]),
        ({"return_signal": "raw"}, [1.5 * 0.25 + 0.75, 1.5 * 0.5 + 0.5, 1.5 + 1, -0.5 - 1, -1.0]),
    ],
)
def test_rewards_of_steps_are_discounted_by_chunk_and_added(
    make: Make, build: Build, settings: dict[str, Any], returns: list[float]
) -> None:
    done = [with_steps(build, "a", [0.5, 0.0, 1.0], True), with_steps(build, "b", [-1.0, 0.0], False)]
    batch = make(gamma=0.5, **settings).batch(done)
    assert batch is not None
    assert batch.chunks.returns.tolist() == pytest.approx(returns)
    assert batch.chunks.positive.tolist() == [value > 0 for value in returns]


def test_centered_returns_of_steps_have_the_mean_of_their_group_taken_away(make: Make, build: Build) -> None:
    done = [with_steps(build, "a", [1.0, 0.0], True), with_steps(build, "b", [0.0, 1.0], True)]
    batch = make(gamma=1.0, return_signal="group_centered").batch(done)
    assert batch is not None
    assert batch.chunks.returns.tolist() == pytest.approx([0.25, -0.75, 0.25, 0.25]), "sums to come: 1, 0, 1, 1"
    assert "dropped_groups" not in batch.metrics
    assert make(gamma=1.0, return_signal="group_centered", step_weight=0).batch(done) is None
