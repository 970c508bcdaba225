"""Groups whose rewards are all equal: what they count in, and what they are trained on."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean, stdev

import pytest

from ale.specs.trainer import LossInput
from ale.trajectory import Trajectory
from ale_pg import PolicyGradient

Make = Callable[..., PolicyGradient]
Build = Callable[..., Trajectory]
Inputs = Callable[..., LossInput]


@pytest.mark.parametrize(("variant", "z"), [("grpo", 4.0), ("dr_grpo", 40.0), ("dapo", 3.0), ("rloo", 8.0)])
def test_groups_without_spread_are_dropped_counted_and_part_of_the_mean_but_for_dapo(
    make: Make, build: Build, variant: str, z: float
) -> None:
    pg = make(variant, **({"max_tokens": 10} if variant == "dr_grpo" else {}))
    even = [build("c", 1.0, [[3]], group="h"), build("d", 1.0, [[2]], group="h"), build("e", 1.0, [[0]], group="h")]
    batch = pg.batch([build("a", 1.0, [[1]]), build("b", 0.0, [[2]]), *even])
    assert batch is not None
    assert len(batch.lengths) == 2
    assert batch.normalizer == z
    assert batch.metrics == {"dropped_groups": 1.0}
    alone = pg.batch([build("a", 1.0, [[1]]), build("b", 0.0, [[2]])])
    assert alone is not None
    assert alone.metrics == {}


@pytest.mark.parametrize(("variant", "z", "held"), [("grpo", 4.0, 4.0), ("dr_grpo", 40.0, 40.0), ("dapo", 3.0, 8.0)])
def test_groups_without_spread_carry_the_penalty_alone(
    make: Make, build: Build, loss_input: Inputs, variant: str, z: float, held: float
) -> None:
    """The policy's mean is as without a penalty; that of the penalty is over everything that is held."""
    pg = make(variant, kl_coef=0.5, **({"max_tokens": 10} if variant == "dr_grpo" else {}))
    even = [build("c", 1.0, [[3]], group="h"), build("d", 1.0, [[2]], group="h"), build("e", 1.0, [[0]], group="h")]
    batch = pg.batch([build("a", 1.0, [[1]]), build("b", 0.0, [[2]]), *even])
    assert batch is not None
    batch = pg.loss.normalize(batch)
    assert (batch.normalizer, batch.reference_normalizer, len(batch.lengths)) == (z, held, 4)
    assert batch.metrics == {"dropped_groups": 1.0}
    slopes = []
    for reference in (-1.0, -2.0):  # the policy's own, and one that holds everything less likely
        inputs = loss_input(batch, [-1.0] * 8, [-1.0] * 8, reference=[reference] * 8)
        pg.loss(inputs).loss.backward()
        slopes.append(inputs.logprobs.grad)
    assert (slopes[0][3:] == 0).all()
    assert (slopes[1][3:] > 0).all(), "they are pulled back"
    alone = pg.batch(even)
    assert alone is not None, "the penalty does not fade as the policy gets good"
    assert pg.loss.normalize(alone).normalizer > 0


@pytest.mark.parametrize("variant", ["grpo", "dapo"])
def test_groups_without_spread_have_the_entropy_bonus(
    make: Make, build: Build, loss_input: Inputs, variant: str
) -> None:
    pg = make(variant, entropy_coef=0.5)
    even = [build("c", 1.0, [[3]], group="h"), build("d", 1.0, [[2]], group="h")]
    assert make(variant).batch(even) is None
    batch = pg.batch(even)
    assert batch is not None
    assert not pg.reference
    inputs = loss_input(pg.loss.normalize(batch), [-1.0] * 5, [-1.0] * 5)
    pg.loss(inputs).loss.backward()
    assert (inputs.logprobs.grad == 0).all()
    assert (inputs.entropy.grad < 0).all()
    assert float(inputs.entropy.grad.sum()) == pytest.approx(-0.5)


def test_whitening_over_tokens_counts_those_of_groups_without_spread(make: Make, build: Build) -> None:
    """REINFORCE++ with the group's mean as its baseline: peers whiten over all response tokens, zeros included."""
    pg = make("ppo_clip", baseline="group_mean", scale="token_std")
    even = [build("c", 1.0, [[3]], group="h"), build("d", 1.0, [[2]], group="h")]
    batch = pg.batch([build("a", 1.0, [[1]]), build("b", 0.0, [[2]]), *even])
    assert batch is not None
    each = [0.5] + [-0.5] * 2 + [0.0] * 5
    expected = [(a - fmean(each)) / (stdev(each) + 1e-6) for a in each]
    assert batch.chunks.returns[batch.chunk_ids[batch.chunk_ids >= 0]].tolist() == pytest.approx(expected, rel=1e-5)
    assert pg.batch(even) is None


def test_a_group_of_which_one_rollout_is_left_is_one_without_spread(make: Make, build: Build) -> None:
    lonely = [build("a", 1.0), build("b", None)]
    assert make("rloo").batch(lonely) is None
    batch = make("rloo").batch([*lonely, build("c", 1.0, group="h"), build("d", 0.0, group="h")])
    assert batch is not None
    assert batch.metrics == {"dropped_groups": 1.0}
