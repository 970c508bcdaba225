"""Every variant against a slow loop over plain numbers, written straight from its equation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ale.specs.trainer import LossInput
from ale.trajectory import Trajectory
from ale_pg import PolicyGradient
from ale_pg.variants import RULES
from ale_train.batches import split

from .slow_loops import GROUPED, Rollout, logprobs, packed_rollouts, slow


@st.composite
def rollouts(draw: st.DrawFn) -> list[Rollout]:
    """One to three groups of one to four rollouts: some without a reward, some without a token, some of several
    rows."""
    out = []
    for g in range(draw(st.integers(1, 3))):
        for _ in range(draw(st.integers(1, 4))):
            rows = draw(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=1, max_size=2))
            n = sum(map(sum, rows))
            numbers = [logprobs(draw(st.integers(0, 1 << 30)), n) for _ in range(4)]
            out.append(Rollout(f"g{g}", draw(st.sampled_from([None, 0.0, 0.0, 0.25, 1.0])), rows, *numbers))
    return out


@st.composite
def configs(draw: st.DrawFn, variant: str) -> dict[str, Any]:
    """Settings that act on the variant."""
    rule, config = RULES[variant], {}  # type: ignore[index,var-annotated]
    values = {
        "return_signal": st.sampled_from(["raw", "signed"]),
        "normalization": st.sampled_from(["token", "trajectory", "trajectory_mean"]),
        "baseline": st.sampled_from(["none", "batch_mean", "group_mean", "leave_one_out"]),
        "clip_low": st.floats(0.05, 1.2),
        "clip_high": st.floats(0.05, 3),
        "dual_clip": st.floats(1.1, 9),
        "tis_cap": st.floats(0.2, 3),
        "level": st.sampled_from(["token", "chunk", "trajectory"]),
        "mismatch_threshold": st.floats(0.3, 4),
        "max_tokens": st.integers(1, 100),
    }
    for name, strategy in values.items():
        if name in rule.open and (value := draw(st.none() | strategy)) is not None:
            config[name] = value
    if "scale" in rule.open:
        baseline = config.get("baseline", rule.settings.baseline)
        scales = ["none", "token_std"] + ["batch_std"] * (baseline != "none") + ["group_std"] * (baseline in GROUPED)
        config["scale"] = draw(st.sampled_from(scales))
    return config | {
        "kl_coef": draw(st.sampled_from([0.0, 0.0, 0.5])),
        "entropy_coef": draw(st.sampled_from([0.0, 0.3])),
        "correction": draw(st.none() | corrections()),
    }


UNITS = st.sampled_from(["token", "chunk", "trajectory", "sequence"])


@st.composite
def corrections(draw: st.DrawFn) -> dict[str, Any]:
    """Settings of a correction that has something to do."""
    weight = draw(st.sampled_from(["none", "truncate", "mask"]))
    made: dict[str, Any] = {"weight": weight}
    if weight != "none":
        made |= {"level": draw(UNITS), "cap": draw(st.floats(1.1, 9))}
    if weight == "none" or draw(st.booleans()):
        made |= {"reject": (draw(st.floats(0, 0.9)), draw(st.floats(1, 9))), "reject_level": draw(UNITS)}
    return made


@pytest.mark.parametrize("variant", RULES)
@settings(max_examples=100, deadline=None)
@given(data=st.data(), done=rollouts(), updates=st.integers(1, 3))
def test_each_updates_loss_is_the_equation_with_the_steps_advantages(
    make: Callable[..., PolicyGradient],
    build: Callable[..., Trajectory],
    loss_input: Callable[..., LossInput],
    variant: str,
    data: st.DataObject,
    done: list[Rollout],
    updates: int,
) -> None:
    pg = make(variant, **data.draw(configs(variant)))
    batch = pg.batch([build(str(i), r.reward, r.rows, r.engine, group=r.group) for i, r in enumerate(done)])
    kl_coef = pg.config.kl_coef
    assert pg.reference is (kl_coef > 0)
    scored = [r for r in done if r.reward is not None]
    names = list(dict.fromkeys(r.group for r in scored))
    if batch is None:
        _, slopes = slow(variant, scored, pg.settings, pg.config, names)
        assert not any(any(s) for s in slopes)
        return
    trained = batch.chunk_ids >= 0
    packed = packed_rollouts(scored, pg.settings, pg.config)
    of_token = [(i, t) for i in packed for t in range(len(scored[i].new))]
    assert trained.sum() == len(of_token), "what a group without spread would add is 0, and it is not computed"
    # Each token with loss carries its number through the cut.
    number = np.zeros(len(trained), np.float32)
    number[trained] = np.arange(len(of_token))
    pieces = split(replace(batch, old_logprobs=number), updates, seed=data.draw(st.integers(0, 9)))
    seen: list[str] = []
    for piece in pieces:
        assert piece.old_logprobs is not None
        assert piece.trajectories is not None
        here = piece.chunk_ids >= 0
        tokens = [of_token[int(x)] for x in piece.old_logprobs[here]]
        groups = [names[g] for g in dict.fromkeys(piece.trajectories.group.tolist())]
        assert {scored[i].group for i, _ in tokens} <= set(groups)
        seen += groups
        new, old, reference = ([getattr(scored[i], n)[t] for i, t in tokens] for n in ("new", "old", "reference"))
        numbers = np.zeros(len(here), np.float32)
        numbers[here] = old
        piece = pg.loss.normalize(replace(piece, old_logprobs=numbers))
        inputs = loss_input(piece, new, old, reference=reference if kl_coef else None)
        loss = pg.loss(inputs).loss
        loss.backward()
        expected, slopes = slow(variant, scored, pg.settings, pg.config, groups)
        assert float(loss.detach()) == pytest.approx(expected, rel=1e-5, abs=1e-6)
        want = [slopes[i][t] for i, t in tokens]
        assert inputs.logprobs.grad.tolist() == pytest.approx(want, rel=1e-5, abs=1e-7)
    assert len(seen) == len(set(seen)), "a group is in one update"
    _, slopes = slow(variant, scored, pg.settings, pg.config, [g for g in names if g not in seen])
    assert not any(any(s) for s in slopes), "what is in no update has nothing to teach"


@pytest.mark.parametrize("variant", RULES)
@settings(max_examples=25, deadline=None)
@given(data=st.data(), done=rollouts())
def test_loss_gradient_and_sums_add_up_however_the_trajectories_are_cut(
    make: Callable[..., PolicyGradient],
    build: Callable[..., Trajectory],
    loss_input: Callable[..., LossInput],
    variant: str,
    data: st.DataObject,
    done: list[Rollout],
) -> None:
    pg = make(variant)
    batch = pg.batch([build(str(i), r.reward, r.rows, r.engine, group=r.group) for i, r in enumerate(done)])
    assume(batch is not None)
    assert batch is not None
    n = int((batch.chunk_ids >= 0).sum())
    new, old = (logprobs(data.draw(st.integers(0, 1 << 30)), n) for _ in range(2))
    numbers = sorted(set(batch.trajectory.tolist()))
    cut = data.draw(st.lists(st.integers(0, 2), min_size=len(numbers), max_size=len(numbers)))
    whole = loss_input(batch, new, old)
    out = pg.loss(whole)
    out.loss.backward()
    loss, gradients, sums = 0.0, {}, dict.fromkeys(out.sums, 0.0)
    for part in range(3):
        mine = [t for t, c in zip(numbers, cut, strict=True) if c == part]
        piece = loss_input(batch, new, old, mine)
        found = pg.loss(piece)
        found.loss.backward()
        loss += float(found.loss.detach())
        for name, value in found.sums.items():
            sums[name] += float(value)
        owners = batch.chunks.trajectory[piece.chunk_ids.numpy()]
        gradients |= {t: piece.logprobs.grad[torch.from_numpy(owners == t)] for t in mine}
    assert loss == pytest.approx(float(out.loss.detach()), rel=1e-9, abs=1e-12)
    assert sums == pytest.approx({k: float(v) for k, v in out.sums.items()}, rel=1e-9, abs=1e-9)
    owners = batch.chunks.trajectory[whole.chunk_ids.numpy()]
    for t in numbers:
        apart = whole.logprobs.grad[torch.from_numpy(owners == t)] - gradients[t]
        assert apart.abs().max() < 1e-6
