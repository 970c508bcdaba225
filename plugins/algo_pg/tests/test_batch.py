"""What of a rollout is trained on, with which advantage, and what the loss is a mean of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from ale.errors import PluginError
from ale.specs.trainer import LossInput
from ale.trajectory import Chunk, ChunkError, Failure, Score, Trajectory
from ale_pg import PolicyGradient
from ale_pg.variants import RULES
from ale_torch.losses.overlong import Overlong, length_penalty
from ale_train.batches import split

Make = Callable[..., PolicyGradient]
Build = Callable[..., Trajectory]
Inputs = Callable[..., LossInput]


@pytest.mark.parametrize(
    ("variant", "config", "returns"),
    [
        ("reinforce", {}, [1.0, 0.25, 0.0]),
        ("reinforce", {"baseline": "batch_mean"}, [0.5833333, -0.1666667, -0.4166667]),
        ("reinforce", {"return_signal": "signed", "negative_signal": -1.0}, [1.0, 1.0, -1.0]),
        ("topr", {}, [1.0, 1.0, -0.05]),
        ("grpo", {}, [1.1208967, -0.3202562, -0.8006405]),
        ("dr_grpo", {}, [0.5833333, -0.1666667, -0.4166667]),
        ("rloo", {}, [0.875, -0.25, -0.625]),
        ("ppo_clip", {"baseline": "batch_mean", "scale": "batch_std"}, [1.3728130, -0.3922323, -0.9805807]),
    ],
)
def test_advantages_of_graded_rewards(
    make: Make, build: Build, variant: str, config: dict[str, Any], returns: list[float]
) -> None:
    batch = make(variant, **config).batch([build("a", 1.0), build("b", 0.25), build("c", 0.0)])
    assert batch is not None
    assert batch.chunks.returns.tolist() == pytest.approx(returns, rel=1e-5)
    assert batch.chunks.positive.tolist() == [r > 0 for r in returns]


def test_a_failure_with_a_share_of_the_reward_is_a_failure(make: Make, build: Build) -> None:
    half = replace(build("b", 0.5), reward=Score(0.5, False))
    batch = make("topr").batch([build("a", 1.0), half])
    assert batch is not None
    assert batch.chunks.returns.tolist() == pytest.approx([1.0, -0.05])


def test_leave_one_out_in_a_group_of_two_is_the_difference_of_the_two(make: Make, build: Build) -> None:
    batch = make("rloo", group_size=2).batch([build("a", 0.75), build("b", 0.5)])
    assert batch is not None
    assert batch.chunks.returns.tolist() == pytest.approx([0.25, -0.25])


@pytest.mark.parametrize("variant", ["grpo", "dr_grpo", "rloo", "dapo", "gspo", "cispo"])
def test_rollouts_without_a_reward_to_be_trusted_change_nothing_for_the_others(
    make: Make, build: Build, variant: str
) -> None:
    good = [build("a", 1.0), build("b", 0.0), build("c", 0.0)]
    lost = [
        build("d", None),
        build("e", 0.0, failure=Failure("sandbox", "gone", True)),
        build("f", 1.0, rejected="veto"),
    ]
    alone, beside = make(variant).batch(good), make(variant).batch([lost[0], *good, *lost[1:]])
    assert alone is not None
    assert beside is not None
    assert beside.chunks.returns.tolist() == alone.chunks.returns.tolist()
    assert beside.normalizer == alone.normalizer


@pytest.mark.parametrize("variant", ["grpo", "rloo"])
def test_rollouts_that_share_an_id_are_still_two(make: Make, build: Build, variant: str) -> None:
    batch = make(variant, group_size=2).batch([build("same", 1.0), build("same", 0.0)])
    assert batch is not None
    expected = 1.0 if variant == "rloo" else 0.5**0.5
    assert batch.chunks.returns.tolist() == pytest.approx([expected, -expected], rel=1e-5)


@pytest.mark.parametrize("updates", [1, 2])
def test_one_task_solved_and_one_failed_train_in_separate_updates_too(make: Make, build: Build, updates: int) -> None:
    """The mean of the batch is the step's, whichever update a task is in."""
    pg = make("reinforce", baseline="batch_mean")
    done = [build(f"{g}{i}", float(g == "solved"), [[1]], group=g) for g in ("solved", "failed") for i in range(4)]
    batch = pg.batch(done)
    assert batch is not None
    pieces = split(batch, updates, seed=1)
    assert len(pieces) == updates
    assert sorted(piece.normalizer for piece in pieces) == [8 / updates] * updates
    returns = [float(x) for piece in pieces for x in piece.chunks.returns]
    assert sorted(returns) == [-0.5] * 4 + [0.5] * 4


@pytest.mark.parametrize("variant", RULES)
def test_a_batch_in_which_nothing_can_be_learnt_is_none(make: Make, build: Build, variant: str) -> None:
    pg = make(variant)
    assert pg.batch([]) is None
    assert pg.batch([build("a", None), build("b", 1.0, [[0]]), build("c", 0.0, [[0]])]) is None


@pytest.mark.parametrize(("normalization", "z"), [("token", 7.0), ("trajectory", 3.0), ("trajectory_mean", 3.0)])
def test_the_normalizer_counts_the_sampled_tokens_or_the_trajectories_that_have_some(
    make: Make, build: Build, normalization: str, z: float
) -> None:
    side = build("d", 1.0, [[1, 2]])
    side = build(
        "d", 1.0, [[1, 2]], chunks=(side.chunks[0], Chunk(1, 0, 4, 6, (-1.0, -1.0), (0, 0), "stop", side=True))
    )
    replayed = build("e", 1.0, [[2]], chunks=(Chunk(0, 0, 2, 4, (), (), "stop", sampled=False),))
    done = [build("a", 1.0, [[2], [1]]), build("b", 0.0, [[3]]), build("c", 0.0, [[0]]), side, replayed]
    batch = make("reinforce", normalization=normalization).batch(done)
    assert batch is not None
    assert batch.normalizer == z
    assert int((batch.chunk_ids >= 0).sum()) == 7


def test_error_turns_are_data_and_no_return_is_discounted(make: Make, build: Build) -> None:
    t = build("a", 1.0, [[1, 2], [1]])
    wrong = Chunk(0, 0, 2, 3, (-1.0,), (0,), "stop", error=ChunkError("illegal_call", "no such tool"))
    batch = make("reinforce").batch([build("a", 1.0, [[1, 2], [1]], chunks=(wrong, *t.chunks[1:]))])
    assert batch is not None
    assert batch.chunks.returns.tolist() == [1.0, 1.0, 1.0]
    assert batch.lengths.tolist() == [6, 3]


@pytest.mark.parametrize("variant", [v for v, rule in RULES.items() if rule.settings.old_logprobs != "none"])
def test_missing_old_logprobs_are_refused_unless_the_engines_are_asked_for(
    make: Make, build: Build, loss_input: Inputs, variant: str
) -> None:
    done = [build("a", 1.0, [[2]]), build("b", 0.0, [[2]])]
    pg = make(variant)
    assert pg.old_logprobs == "recompute"
    batch = pg.batch(done)
    assert batch is not None
    with pytest.raises(PluginError, match=r"fill TrainBatch\.old_logprobs"):
        pg.loss(loss_input(batch, [-2.0] * 4, None))
    if "old_logprobs" in RULES[variant].open:  # type: ignore[index]
        engine = make(variant, old_logprobs="engine")
        assert engine.old_logprobs == "engine"
        sums = engine.loss(loss_input(batch, [-2.0] * 4, None)).sums
        assert float(sums["ratio_sum"]) == pytest.approx(4 * float(torch.tensor(-1.0).exp()))


@pytest.mark.parametrize("variant", ["reinforce", "rloo"])
def test_variants_without_a_ratio_need_no_old_logprobs(
    make: Make, build: Build, loss_input: Inputs, variant: str
) -> None:
    pg = make(variant)
    batch = pg.batch([build("a", 1.0, [[2]]), build("b", 0.0, [[2]])])
    assert batch is not None
    assert pg.old_logprobs == "none"
    assert "ratio" not in pg.loss.metrics(
        {k: float(v) for k, v in pg.loss(loss_input(batch, [-2.0] * 4, None)).sums.items()}
    )


def test_metrics_say_what_their_names_say(make: Make, build: Build, loss_input: Inputs) -> None:
    pg = make("topr_token_mask", negative_signal=-1.0)
    batch = pg.batch([build("a", 1.0, [[1], [1]]), build("b", 0.0, [[1]]), build("c", 0.0, [[1]])])
    assert batch is not None
    # Engine: -1 everywhere. Ratios: e for the success (unclipped), e for the second (clipped), 1/e for the third.
    inputs = loss_input(batch, [-1.0, -1.0, -1.0, -2.0], [-2.0, -2.0, -2.0, -0.1])
    inputs.old_logprobs[3] = -1.0
    inputs.old_logprobs[2] = -0.1
    inputs.logprobs.data[2] = 0.9
    out = pg.loss.metrics({k: float(v) for k, v in pg.loss(inputs).sums.items()} | {"grad_norm": 7.0})
    e = float(torch.tensor(1.0, dtype=torch.float64).exp())
    assert (out["grad_norm"], out["loss_tokens"], out["trajectories"], out["entropy"]) == (7.0, 4.0, 3.0, 0.5)
    assert (out["positive"], out["masked"], out["clipped_high"]) == (0.5, 0.25, 0.25)
    assert out["advantage"] == pytest.approx(-1 / 3)
    assert out["advantage_std"] == pytest.approx((8 / 9) ** 0.5)
    ratios = [e, e, e, 1 / e]
    assert out["ratio"] == pytest.approx(sum(ratios) / 4)
    assert out["ratio_std"] == pytest.approx(float(torch.tensor(ratios).double().std(correction=0)))
    assert out["effective_samples"] == pytest.approx(sum(ratios) ** 2 / 4 / sum(r * r for r in ratios))
    assert out["kl_old"] == pytest.approx((3 * (e - 2) + 1 / e) / 4)


def test_the_spread_of_rewards_far_from_zero_is_not_lost(make: Make, build: Build, loss_input: Inputs) -> None:
    pg = make("reinforce")
    batch = pg.batch([build(str(i), 1e4 + (-1) ** i) for i in range(64)])
    assert batch is not None
    sums = pg.loss(loss_input(batch, [-1.0] * 64, None, dtype="float32")).sums
    out = pg.loss.metrics({k: float(v) for k, v in sums.items()})
    assert (out["advantage"], out["advantage_std"]) == pytest.approx((1e4, 1.0), rel=1e-6)


@pytest.mark.parametrize("variant", ["grpo", "cispo"])
def test_the_clipped_shares_tell_above_from_below(make: Make, build: Build, loss_input: Inputs, variant: str) -> None:
    pg = make(variant, clip_low=0.2, clip_high=0.2)
    batch = pg.batch([build("a", 1.0, [[3]]), build("b", 0.0, [[3]])])
    assert batch is not None
    inputs = loss_input(batch, [-1.0, -2.0, -3.0] * 2, [-2.0] * 6)
    out = pg.loss.metrics({k: float(v) for k, v in pg.loss(inputs).sums.items()})
    # GRPO: above where the advantage is positive, below where it is negative; CISPO cuts the weight of any token.
    expected = 1 / 3 if variant == "cispo" else 1 / 6
    assert (out["clipped_low"], out["clipped_high"]) == pytest.approx((expected, expected))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"variant": "grpo", "tis_cap": 2.0}, "tis_cap cannot be set with the variant 'grpo'"),
        ({"variant": "reinforce", "clip_low": 0.1, "clip_high": 0.1}, "clip_high, clip_low cannot be set"),
        ({"variant": "dapo", "normalization": "token"}, "normalization cannot be set"),
        ({"variant": "reinforce", "old_logprobs": "engine"}, "old_logprobs cannot be set"),
        ({"variant": "topr_token_mask", "old_logprobs": "engine"}, "old_logprobs cannot be set"),
        ({"variant": "topr", "mismatch_threshold": 3}, "mismatch_threshold cannot be set"),
        ({"variant": "gspo", "max_tokens": 3}, "max_tokens cannot be set"),
        ({"variant": "dr_grpo", "scale": "group_std"}, "scale cannot be set"),
        ({"variant": "reinforce", "negative_signal": -1}, "does nothing with return_signal 'raw'"),
        ({"variant": "tis", "scale": "batch_std"}, "divides differences from a baseline"),
        ({"variant": "rloo", "group_size": 1}, "needs a group_size of at least 2"),
        ({"variant": "cispo", "baseline": "batch_mean"}, "needs a baseline of the group"),
        ({"reward_kl_estimator": "k3"}, "reward_kl_estimator does nothing with reward_kl_coef 0"),
        ({"variant": "gpro"}, "Input should be 'reinforce'"),
        ({"clip_lo": 1}, "Extra inputs"),
        (
            {"temperature": 0.7, "variant": "topr_token_mask"},
            "temperature is 0.7, and the variant 'topr_token_mask' compares with the engine's log-probabilities",
        ),
        ({"temperature": 0.7, "old_logprobs": "engine"}, "and old_logprobs 'engine' compares"),
        ({"temperature": 0.7, "correction": {"weight": "truncate"}}, "and correction compares"),
        ({"temperature": 0.7, "reward_kl_coef": 0.1}, "and reward_kl_coef compares"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        PolicyGradient.Config(**config)


def test_the_batch_has_the_temperature_that_logits_are_divided_by(make: Make, build: Build) -> None:
    for settings, expected in (({}, 1.0), ({"temperature": 0.7}, 0.7)):
        batch = make("grpo", **settings).batch([build("a", 1.0, [[2]]), build("b", 0.0, [[2]])])
        assert batch is not None
        assert batch.temperature == expected


def test_a_setting_of_null_is_the_variants_own() -> None:
    c = PolicyGradient.Config(variant="dapo", clip_high=None, tis_cap=None, clip_low=0.1)
    assert (c.settings().clip_low, c.settings().clip_high) == (0.1, 0.28)


def test_rewards_of_rollouts_without_a_token_make_no_batch_of_the_others(make: Make, build: Build) -> None:
    assert make("reinforce").batch([build("a", 1.0, [[0]]), build("b", 0.0, [[2]])]) is None


def test_sums_of_narrow_numbers_are_made_in_float32(make: Make, build: Build, loss_input: Inputs) -> None:
    pg = make("reinforce", normalization="trajectory")
    batch = pg.batch([build("a", 1.0, [[300]])])
    assert batch is not None
    inputs = loss_input(batch, [-1.0078125] * 300, None, dtype="bfloat16")
    loss = pg.loss(inputs).loss
    loss.backward()
    assert loss.dtype == torch.float32
    assert float(loss.detach()) == pytest.approx(302.34375)
    assert inputs.logprobs.grad.dtype == torch.bfloat16


def test_long_rollouts_lose_a_part_of_their_reward(make: Make, build: Build) -> None:
    overlong = Overlong(max_tokens=10, buffer=4, penalty=0.5)
    assert [length_penalty(n, overlong) for n in (0, 6, 7, 8, 10, 99)] == [0, 0, -0.125, -0.25, -0.5, -0.5]
    batch = make("reinforce", overlong=overlong).batch([build("a", 1.0, [[6]]), build("b", 1.0, [[3, 5]])])
    assert batch is not None
    assert batch.chunks.returns.tolist() == pytest.approx([1.0, 0.75, 0.75])
    with pytest.raises(ValidationError, match=r"buffer \(11\) is more than max_tokens"):
        Overlong(max_tokens=10, buffer=11)


@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
@pytest.mark.parametrize("how", ["response", "episode"])
def test_a_rollout_that_was_cut_off_has_no_loss_but_counts_in_its_group(
    make: Make, build: Build, how: str, kl_coef: float
) -> None:
    cut = build("b", 0.0, [[2]])
    if how == "response":
        cut = replace(cut, chunks=(replace(cut.chunks[0], finish_reason="length"),))
    else:
        cut = replace(cut, ended_by="budget")
    rollouts = [build("a", 1.0, [[2]]), cut, build("c", 0.5, [[2]])]
    whole, masked = (make("dapo", kl_coef=kl_coef, mask_truncated=m).batch(rollouts) for m in (False, True))
    assert whole is not None
    assert masked is not None
    assert whole.normalizer == 6
    assert masked.normalizer == 4
    returns = whole.chunks.returns.tolist()
    assert returns[1] < 0
    assert masked.chunks.returns.tolist() == ([returns[0], 0.0, returns[2]] if kl_coef else [returns[0], returns[2]])
    assert make("grpo", mask_truncated=True).batch([cut, replace(cut, id="d"), replace(cut, id="e")]) is None
