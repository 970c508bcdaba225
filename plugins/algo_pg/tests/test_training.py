"""The variants through the trainer `torch` on a tiny model: cuts do not matter, rewarded tokens become likelier."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from ale.specs.driver import DriverContext
from ale.trajectory import Chunk, Sequence, Trajectory
from ale_pg import PolicyGradient
from ale_pg.variants import RULES

trainer_torch = pytest.importorskip("ale_trainer_torch")

Make = Callable[..., PolicyGradient]
Build = Callable[..., Trajectory]
Open = Callable[..., AbstractAsyncContextManager[Any]]
TOKENS = 40


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of two narrow layers."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(1)
    auto: Any = AutoModelForCausalLM
    config = Qwen2Config(
        vocab_size=TOKENS, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, tie_word_embeddings=True, initializer_range=0.2,
    )  # fmt: skip
    auto.from_config(config).save_pretrained(str(folder))
    return folder


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


def rollouts(build: Build, seed: int, count: int = 8) -> list[Trajectory]:
    """Random tokens in one or two sequences of one to three chunks; half of each group of four is rewarded."""
    rng = np.random.default_rng(seed)
    out = []
    for i in range(count):
        sequences: list[Sequence] = []
        chunks: list[Chunk] = []
        for s in range(int(rng.integers(1, 3))):
            at = 2
            for _ in range(int(rng.integers(1, 4))):
                at += int(rng.integers(0, 3))
                n = int(rng.integers(1, 5))
                logprobs = tuple(float(x) for x in rng.normal(-3.7, 0.8, n))
                chunks.append(Chunk(len(chunks), s, at, at + n, logprobs, (0,) * n, "stop"))
                at += n
            sequences.append(Sequence(tuple(int(x) for x in rng.integers(0, TOKENS, at)), ()))
        out.append(build(f"t{i}", float(i % 2), sequences=tuple(sequences), chunks=tuple(chunks), group=f"g{i // 4}"))
    return out


@pytest.mark.parametrize("variant", RULES)
async def test_gradient_and_metrics_do_not_depend_on_how_the_trainer_cuts_the_batch(
    opened: Open, make: Make, build: Build, variant: str
) -> None:
    pg = make(variant)
    packed = pg.batch(rollouts(build, 4))
    assert packed is not None
    found = []
    for budget in (1, 60, 100_000):
        async with opened(micro_batch_tokens=budget, max_grad_norm=1e9) as trainer:
            # Old log-probabilities that differ from the current ones, as after an update.
            old = await trainer.logprobs(packed) + np.where(packed.chunk_ids >= 0, 0.3 * np.sin(packed.token_ids), 0)
            totals = await trainer.update(replace(packed, old_logprobs=old.astype(np.float32)), pg.loss)
            states = trainer._learner.optimizer.state.values()
            found.append((pg.metrics(totals), torch.cat([s["exp_avg"].flatten() for s in states])))
    assert found[0][1].abs().max() > 1e-5
    for metrics, gradient in found[1:]:
        assert torch.allclose(gradient, found[0][1], atol=1e-6)
        for name in metrics.keys() - {"seconds", "padding_waste", "dropped_groups"}:
            assert metrics[name] == pytest.approx(found[0][0][name], rel=1e-4, abs=1e-5), name


@pytest.mark.parametrize("variant", [v for v, rule in RULES.items() if rule.settings.old_logprobs != "none"])
async def test_the_ratio_is_one_before_the_first_update_and_moves_with_it(
    opened: Open, make: Make, build: Build, variant: str
) -> None:
    pg = make(variant, **({"mismatch_threshold": 1e3} if variant == "topr_token_mask" else {}))
    packed = pg.batch(rollouts(build, 5))
    assert packed is not None
    async with opened(lr=1e-2) as trainer:
        batch = replace(packed, old_logprobs=await trainer.logprobs(packed))
        seen = [pg.metrics(await trainer.update(batch, pg.loss)) for _ in range(2)]
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
                logits = trainer._learner.model(input_ids=torch.zeros(1, 1, dtype=torch.long)).logits[0, -1]
            logprobs = torch.log_softmax(logits, -1).double().numpy()
            tokens = rng.choice(TOKENS, 64, p=np.exp(logprobs) / np.exp(logprobs).sum())
            done = [
                build(str(i), float(t <= 7), [[1]], [float(logprobs[t])], sequences=(Sequence((0, int(t)), ()),),
                      chunks=(Chunk(0, 0, 1, 2, (float(logprobs[t]),), (0,), "stop"),))
                for i, t in enumerate(tokens)
            ]  # fmt: skip
            success.append(sum(t.passed for t in done) / len(done))
            packed = pg.batch(done)
            if packed is None:
                continue
            batch = replace(packed, old_logprobs=await trainer.logprobs(packed))
            for _ in range(2):
                await trainer.update(batch, pg.loss)
    assert success[0] < 0.4
    assert success[-1] > 0.9
