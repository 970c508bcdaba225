"""The variants through the trainer `torch` on a tiny model: ratios move, rewarded tokens become likelier."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.loss_samples import TOKENS, random_rollouts, write_small_policy

from ale.specs.driver import DriverContext
from ale.trajectory import Chunk, Sequence, Trajectory
from ale_pg import PolicyGradient
from ale_pg.variants import RULES

trainer_torch = pytest.importorskip("ale_trainer_torch")

Make = Callable[..., PolicyGradient]
Build = Callable[..., Trajectory]
Open = Callable[..., AbstractAsyncContextManager[Any]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of two narrow layers."""
    return write_small_policy(tmp_path_factory.mktemp("model"))


@pytest.fixture
def opened(model: Path) -> Open:
    """Opens a trainer with the model loaded."""

    @asynccontextmanager
    async def open_trainer(**settings: Any) -> AsyncIterator[Any]:
        config = trainer_torch.TorchTrainer.Config(**{"device": "cpu", "threads": 1, **settings})
        async with trainer_torch.TorchTrainer(config, DriverContext(seed=2)) as trainer:
            await trainer.load(model)
            yield trainer

    return open_trainer


@pytest.mark.parametrize("variant", [v for v, rule in RULES.items() if rule.settings.old_logprobs != "none"])
async def test_the_ratio_is_one_before_the_first_update_and_moves_with_it(
    opened: Open, make: Make, build: Build, variant: str
) -> None:
    pg = make(variant, **({"mismatch_threshold": 1e3} if variant == "topr_token_mask" else {}))
    packed = pg.batch(random_rollouts(5))
    assert packed is not None
    async with opened(lr=1e-2) as trainer:
        batch = replace(packed, old_logprobs=await trainer.logprobs(packed))
        seen = [pg.loss.metrics(await trainer.update(batch, pg.loss)) for _ in range(2)]
    assert [seen[0][n] for n in ("ratio", "ratio_std", "kl_old", "effective_samples")] == [1.0, 0.0, 0.0, 1.0]
    assert seen[1]["kl_old"] > 0
    assert seen[1]["effective_samples"] < 1


@pytest.mark.parametrize("variant", RULES)
async def test_a_rewarded_token_becomes_likely_by_trial(opened: Open, make: Make, build: Build, variant: str) -> None:
    """One choice of 40 tokens, rewarded where it is 7 or less; sampled from the policy itself, two updates a sample."""
    pg = make(variant, group_size=64)
    rng = np.random.default_rng(0)
    success = []
    async with opened(lr=2e-2) as trainer:
        for _ in range(14):
            with torch.no_grad():
                model = trainer._workers.target.learner.model
                logits = model(input_ids=torch.zeros(1, 1, dtype=torch.long)).logits[0, -1]
            logprobs = torch.log_softmax(logits, -1).double().numpy()
            tokens = rng.choice(TOKENS, 64, p=np.exp(logprobs) / np.exp(logprobs).sum())
            done = [
                build(
                    str(i),
                    float(t <= 7),
                    [[1]],
                    [float(logprobs[t])],
                    sequences=(Sequence((0, int(t)), ()),),
                    chunks=(Chunk(0, 0, 1, 2, (float(logprobs[t]),), (0,), "stop"),),
                )
                for i, t in enumerate(tokens)
            ]
            success.append(sum(t.passed for t in done) / len(done))
            packed = pg.batch(done)
            if packed is None:
                continue
            batch = replace(packed, old_logprobs=await trainer.logprobs(packed))
            for _ in range(2):
                await trainer.update(batch, pg.loss)
    assert success[0] < 0.4
    assert success[-1] > 0.9
