"""Means over units of tokens, and ratios that neither overflow nor become nan."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from ale.specs.trainer import ChunkTensors
from ale_torch.losses.groups import groups_of
from ale_torch.losses.ratios import LARGEST_LOG_RATIO, gap, log_ratio, mismatch_mask, ratio_of, truncate
from ale_torch.losses.segments import segment_mean, segment_sizes, segments_of

INF = math.inf


def test_tokens_of_a_unit_may_stand_apart_and_numbers_may_be_left_out() -> None:
    values, segments = torch.tensor([1.0, 10.0, 3.0]), torch.tensor([7, 2, 7])
    assert segment_mean(values, segments).tolist() == [2.0, 10.0, 2.0]
    assert segment_sizes(values, segments).tolist() == [2.0, 1.0, 2.0]


def test_no_tokens_have_no_means() -> None:
    none = torch.zeros(0)
    assert segment_mean(none, torch.zeros(0, dtype=torch.long)).tolist() == []
    assert segment_sizes(none, torch.zeros(0, dtype=torch.long)).tolist() == []


def test_the_units_of_every_level_are_told_apart() -> None:
    ids = torch.tensor([4, 4, 7, 9])
    table = ChunkTensors(torch.tensor([0] * 8 + [3, 3]), *[torch.zeros(10)] * 5)
    assert segments_of("token", ids, table).tolist() == [0, 1, 2, 3]
    assert segments_of("chunk", ids, table).tolist() == [4, 4, 7, 9]
    assert segments_of("trajectory", ids, table).tolist() == [0, 0, 0, 3]


def test_the_gradient_flows_through_a_ratio_also_where_it_is_one() -> None:
    new = torch.tensor([-1.0, -2.0, -1.0], dtype=torch.float64, requires_grad=True)
    log = log_ratio(new, new.detach(), torch.tensor([0, 0, 1]))
    log.exp().sum().backward()
    assert log.tolist() == [0.0, 0.0, 0.0]
    assert new.grad is not None
    assert new.grad.tolist() == [1.0, 1.0, 1.0]


def test_what_is_impossible_to_both_says_nothing_and_to_one_is_far_apart() -> None:
    new, old = torch.tensor([-INF, -INF, -1.0]), torch.tensor([-INF, -1.0, -INF])
    assert gap(new, old).tolist() == [0.0, -LARGEST_LOG_RATIO, LARGEST_LOG_RATIO]
    each = torch.arange(3)
    assert log_ratio(new, old, each).tolist() == [0.0, -INF, INF]
    assert math.isnan(log_ratio(new, old, torch.zeros(3, dtype=torch.long))[0].item())


def test_weights_are_cut_and_a_ratio_that_does_not_exist_counts_as_none() -> None:
    log = torch.tensor([-INF, -1.0, 0.0, 5.0, INF, math.nan])
    assert truncate(log).tolist() == pytest.approx([0.0, math.exp(-1), 1.0, 1.0, 1.0, 0.0])
    assert truncate(log, 2.0).tolist() == pytest.approx([0.0, math.exp(-1), 1.0, 2.0, 2.0, 0.0])
    assert ratio_of(log)[-1] == 1.0
    assert torch.isfinite(ratio_of(log)).all()


def test_a_unit_that_one_side_holds_impossible_is_masked_whatever_the_threshold() -> None:
    segments = torch.tensor([0, 0, 1])
    for impossible in (torch.tensor([-INF, -1.0, -1.0]), torch.tensor([-INF, INF, -1.0])):
        assert mismatch_mask(impossible, torch.full((3,), -1.0), segments, 1e9).tolist() == [0.0, 0.0, 1.0]


def test_groups_hold_places_in_the_order_they_came() -> None:
    rollouts = [SimpleNamespace(group=g) for g in "abab"]
    assert groups_of(rollouts) == [[0, 2], [1, 3]]  # type: ignore[arg-type]
