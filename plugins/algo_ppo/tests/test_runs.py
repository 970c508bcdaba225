"""The algorithm with a trainer: what it needs, what it refuses, and that policy and critic learn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from support.loss_samples import loss_input, random_rollouts, rollout, write_small_policy

from ale.errors import PluginError
from ale.specs.driver import DriverContext
from ale.specs.trainer import TrainBatch
from ale.trajectory import CUT_OFF
from ale_ppo import PPO

trainer_torch = pytest.importorskip("ale_trainer_torch")


def make(**settings: Any) -> PPO:
    return PPO(PPO.Config(**settings), DriverContext())


async def test_updates_raise_what_was_rewarded_and_teach_the_critic(tmp_path: Path) -> None:
    ppo, rollouts = make(vf_clip=None), random_rollouts(2, 16)
    config = trainer_torch.TorchTrainer.Config(device="cpu", threads=1, lr=1e-2, value_head=True)
    async with trainer_torch.TorchTrainer(config, DriverContext(seed=1)) as trainer:
        await trainer.load(write_small_policy(tmp_path))
        explained, gaps = [], []
        for _ in range(8):
            batch = ppo.batch(rollouts)
            assert batch is not None
            batch = ppo.credit(replace(batch, columns={"values": await trainer.values(batch)}), rollouts)
            old = await trainer.logprobs(batch)
            gaps.append(gap_of(batch, old))
            batch = ppo.loss.normalize(replace(batch, old_logprobs=old))
            for _ in range(4):
                explained.append(ppo.loss.metrics(await trainer.update(batch, ppo.loss))["explained_variance"])
    assert explained[0] == pytest.approx(0, abs=1e-6), "a new value head knows nothing"
    assert explained[-1] > 0.3
    assert gaps[-1] > gaps[0] + 0.2


def gap_of(batch: TrainBatch, logprobs: Any) -> float:
    """How much likelier, in nats a token, rewarded rollouts are than the others."""
    rewarded = np.zeros(len(logprobs), dtype=bool)
    trained = batch.chunk_ids >= 0
    rewarded[trained] = batch.chunks.returns[batch.chunk_ids[trained]] > 0
    return float(logprobs[trained & rewarded].mean() - logprobs[trained & ~rewarded].mean())


def test_rollouts_that_were_cut_off_have_no_loss_if_so_wished() -> None:
    cut = rollout("cut", 0.0, ((2,),), ended_by=sorted(CUT_OFF)[0])
    whole = rollout("whole", 1.0, ((3,),))
    assert make(mask_truncated=True).batch([cut]) is None
    for masked, tokens in ((True, 3), (False, 5)):
        batch = make(mask_truncated=masked).batch([cut, whole])
        assert batch is not None
        assert int((batch.chunk_ids >= 0).sum()) == tokens


def test_a_loss_without_values_or_columns_says_what_is_missing() -> None:
    ppo = make()
    batch = ppo.batch([rollout("one", 1.0)])
    assert batch is not None
    given = loss_input(batch, [-1.0], [-1.0])
    with pytest.raises(PluginError, match=r"no values.*trainer\.value_head"):
        ppo.loss(given)
    with pytest.raises(PluginError, match="no advantages, targets"):
        ppo.loss(replace(given, values=torch.zeros(1), columns={"values": torch.zeros(1)}))
    with pytest.raises(PluginError, match="reference_logprobs"):
        make(reward_kl_coef=0.1).credit(replace(batch, columns={"values": np.zeros(3, np.float32)}), [])


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"kl_estimator": "k1"}, "kl_coef 0"),
        ({"reward_kl_estimator": "k3"}, "reward_kl_coef 0"),
        ({"correction": {}, "old_logprobs": "engine"}, "leave one of them out"),
        ({"correction": {}, "temperature": 0.5}, "temperature is 0.5, and correction compares with the engine's"),
    ],
)
def test_settings_without_effect_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        PPO.Config(**settings)
