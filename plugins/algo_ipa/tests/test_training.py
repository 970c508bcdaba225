"""IPA through the trainer `torch` on a tiny model: ratios move, rewarded tokens become likelier."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ale.specs.driver import DriverContext
from ale.specs.trainer import LossInput, LossOutput, TrainBatch
from ale.testing.losses import TOKENS, random_rollouts, write_small_policy
from ale.trajectory import Chunk, Sequence, Trajectory
from ale_ipa import IPA

trainer_torch = pytest.importorskip("ale_trainer_torch")

Make = Callable[..., IPA]
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
            await trainer.load_model(model)
            yield trainer

    return open_trainer


async def test_the_ratio_is_one_before_the_first_update_and_moves_with_it(
    opened: Open, make: Make, build: Build
) -> None:
    ipa = make()
    packed = ipa.batch(random_rollouts(5))
    assert packed is not None
    async with opened(lr=1e-2) as trainer:
        batch = replace(packed, old_logprobs=await trainer.logprobs(packed))
        seen = [ipa.metrics(await trainer.update(batch, ipa.loss)) for _ in range(3)]
    assert (seen[0]["ratio"], seen[0]["ratio_std"], seen[0]["kl_old"]) == (1.0, 0.0, 0.0)
    assert seen[2]["kl_old"] > seen[1]["kl_old"] > 0
    assert seen[2]["ratio_std"] > 0


@pytest.mark.parametrize("config", [{}, {"level": "trajectory"}, {"return_signal": "group_centered"}])
async def test_a_rewarded_token_becomes_likely_by_trial(
    opened: Open, make: Make, build: Build, config: dict[str, Any]
) -> None:
    """Two choices of 40 tokens each, rewarded only where both are 7 or less; sampled from the policy itself."""
    ipa = make(group_size=64, **config)
    rng = np.random.default_rng(0)
    success = []
    async with opened(lr=2e-2) as trainer:
        for _ in range(25):
            tokens, logprobs = await sample(trainer, rng)
            done = [
                build(
                    str(i),
                    float(max(pair) <= 7),
                    sequences=(Sequence((0, int(pair[0]), 9, int(pair[1])), ()),),
                    chunks=tuple(
                        Chunk(k, 0, 1 + 2 * k, 2 + 2 * k, (float(logprobs[i, k]),), (0,), "stop") for k in range(2)
                    ),
                )
                for i, pair in enumerate(tokens)
            ]
            success.append(sum(t.passed for t in done) / len(done))
            packed = ipa.batch(done)
            if packed is None:
                continue
            batch: TrainBatch = replace(packed, old_logprobs=await trainer.logprobs(packed))
            totals = await trainer.update(batch, ipa.loss)
        assert ipa.metrics(totals)["engine_gap"] < 1e-3
    assert success[0] < 0.2
    assert sum(success[-3:]) / 3 > 0.9


async def sample(trainer: Any, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """64 pairs of tokens behind the contexts (0,) and (0, first, 9), and their log-probabilities."""
    tokens, logprobs = np.zeros((64, 2), np.int64), np.zeros((64, 2))
    model = trainer._learner.model
    with torch.no_grad():
        for k in range(2):
            context = np.zeros((64, 1 + 2 * k), np.int64)
            if k:
                context[:, 1], context[:, 2] = tokens[:, 0], 9
            table = torch.log_softmax(model(input_ids=torch.from_numpy(context)).logits[:, -1], -1).double().numpy()
            for i in range(64):
                p = np.exp(table[i])
                tokens[i, k] = rng.choice(TOKENS, p=p / p.sum())
                logprobs[i, k] = table[i, tokens[i, k]]
    return tokens, logprobs


async def test_a_failing_chunk_with_a_large_ratio_pushes_no_harder_than_one(
    opened: Open, make: Make, build: Build
) -> None:
    ipa = make(negative_signal=-1.0)
    packed = ipa.batch([build("t", 0.0, (3,))])
    assert packed is not None
    gradients: list[list[float]] = []

    def watched(inputs: LossInput) -> LossOutput:
        out = ipa.loss(inputs)
        gradients.append(torch.autograd.grad(out.loss, inputs.logprobs, retain_graph=True)[0].tolist())
        return out

    async with opened() as trainer:
        now = await trainer.logprobs(packed)
        for shift in (-2.0, 0.0, 2.0):
            old = np.where(packed.chunk_ids >= 0, now - shift, 0).astype(np.float32)
            # The engine agrees with pi_old: only the ratio to the current policy is at stake.
            await trainer.update(replace(packed, old_logprobs=old, engine_logprobs=old), watched)
            now = await trainer.logprobs(packed)
    third = 1 / 3
    assert gradients[0] == pytest.approx([third * np.exp(-2.0)] * 3, rel=1e-3)
    assert gradients[1] == pytest.approx([third] * 3, rel=1e-3)
    assert gradients[2] == pytest.approx([third] * 3, rel=1e-3)
