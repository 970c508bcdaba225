"""Continual pre-training through the trainer `torch`: the loss of a corpus is that of each next token, computed one by
one."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from ale.errors import ConfigError
from ale.specs.driver import DriverContext
from ale.specs.trainer import TrainBatch
from ale.trajectory import Trajectory
from ale_sft import SFT
from ale_testing.tiny_model import write_tiny_model
from ale_train.supervised.pretraining import text_batch
from ale_train.supervised.text_sequences import sequences_once, stream_sequences

trainer_torch = pytest.importorskip("ale_trainer_torch")
LENGTH = 24


@pytest.fixture
def corpus(tmp_path: Path) -> list[Path]:
    """Two files."""
    for name, text in (
        ("a.txt", "an engine samples tokens, one after the other\n" * 4),
        ("b.md", "# grün und blau\n" * 3),
    ):
        (tmp_path / name).write_text(text)
    return [tmp_path / "a.txt", tmp_path / "b.md"]


async def test_the_loss_of_text_is_that_of_each_next_token(tmp_path: Path, corpus: list[Path]) -> None:
    tokenizer = write_tiny_model(tmp_path / "model")
    sft = SFT(SFT.Config(), DriverContext())
    texts = list(sequences_once(corpus, tokenizer, LENGTH))
    batch = text_batch(sft, texts)
    model = AutoModelForCausalLM.from_pretrained(str(tmp_path / "model"), dtype=torch.float32)
    total, count = 0.0, 0
    for sequence in texts:
        for i in range(1, len(sequence)):
            with torch.no_grad():
                logits = model(torch.tensor(sequence[None, :i].astype(np.int64))).logits[0, -1].double()
            total -= float(logits.log_softmax(-1)[int(sequence[i])])
            count += 1
    stop = tokenizer.stop_token_ids[0]
    written = [t for f in corpus for t in (*tokenizer.encode(f.read_text()), stop)]
    assert count == len(written) - 1, "every token of the corpus but the first"
    for budget in (1, 100_000):
        config = trainer_torch.TorchTrainer.Config(device="cpu", threads=1, micro_batch_tokens=budget, lr=1e-9)
        async with trainer_torch.TorchTrainer(config, DriverContext(seed=1)) as trainer:
            await trainer.load(tmp_path / "model")
            totals = sft.loss.metrics(await trainer.update(batch, sft.loss))
            logprobs = await trainer.logprobs(batch)
        assert totals["loss"] == pytest.approx(total / count, rel=1e-5)
        assert totals["loss_tokens"] == count
        assert -logprobs.sum(dtype=np.float64) / count == pytest.approx(total / count, rel=1e-5)


async def test_text_is_learnt(tmp_path: Path, corpus: list[Path]) -> None:
    tokenizer = write_tiny_model(tmp_path / "model")
    sft = SFT(SFT.Config(), DriverContext())
    texts = stream_sequences(corpus, tokenizer, LENGTH, seed=1)
    config = trainer_torch.TorchTrainer.Config(device="cpu", threads=1)
    async with trainer_torch.TorchTrainer(config, DriverContext(seed=1)) as trainer:
        await trainer.load(tmp_path / "model")
        losses = []
        for _ in range(40):
            batch = text_batch(sft, [p.token_ids for p in itertools.islice(texts, 4)])
            losses.append((await trainer.update(batch, sft.loss, lr=5e-3, weight_decay=0.01))["loss"])
    assert losses[0] > 4
    assert losses[-1] < 1


def test_an_algorithm_that_takes_the_loss_off_text_is_refused() -> None:
    class Picky(SFT):
        def batch(self, trajectories: list[Trajectory]) -> TrainBatch | None:  # type: ignore[override]
            return super().batch(trajectories[:1])

    texts = [np.arange(5, dtype=np.int32)] * 2
    assert text_batch(SFT(SFT.Config(), DriverContext()), texts).normalizer == pytest.approx(8)
    with pytest.raises(ConfigError, match="takes the loss off text"):
        text_batch(Picky(SFT.Config(), DriverContext()), texts)
