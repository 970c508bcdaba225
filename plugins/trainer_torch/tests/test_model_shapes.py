"""The trainer computes what transformers computes from the same folder, sequence by sequence, and publishes weights
under the names of a folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ale.errors import ConfigError
from ale.specs.driver import DriverContext
from ale.specs.engine import FolderTicket, MemoryTicket
from ale.specs.trainer import ChunkTable, TrainBatch
from ale_testing.model_shapes import LONG, SHAPES, VOCABULARY, true_logprobs, write_model
from ale_trainer_torch import TorchTrainer

LENGTHS = (20, 2 * LONG, 12, 33, LONG, 8)


def make_batch() -> TrainBatch:
    rng, count = np.random.default_rng(0), len(LENGTHS)
    ids = np.concatenate([np.where(np.arange(n) < 1, -1, i) for i, n in enumerate(LENGTHS)])
    ones = np.ones(count)
    table = ChunkTable(
        np.arange(count), np.zeros(count, np.int64), ones.astype(np.int64), ones.astype(np.float32), ones.astype(bool)
    )
    tokens = np.concatenate([rng.integers(3, VOCABULARY, n) for n in LENGTHS]).astype(np.int64)
    return TrainBatch(
        tokens, np.array(LENGTHS), np.arange(count), ids, np.zeros(len(ids), np.float32), table, float((ids >= 0).sum())
    )


def trainer(**settings: object) -> TorchTrainer:
    config = TorchTrainer.Config.model_validate({"device": "cpu", "threads": 1, **settings})
    return TorchTrainer(config, DriverContext(seed=5))


@pytest.mark.parametrize("name", SHAPES)
async def test_each_sequence_of_a_batch_gets_the_log_probabilities_that_it_has_alone(name: str, tmp_path: Path) -> None:
    folder, batch = write_model(name, tmp_path / "model"), make_batch()
    async with trainer() as learning:
        await learning.load(folder)
        await learning.load(folder, "reference")
        found = [await learning.logprobs(batch, policy) for policy in ("current", "reference", "current")]
        memory = (await learning.publish("memory", tmp_path)).ticket
        published = (await learning.publish("folder", tmp_path / "published")).ticket
    wanted = [
        np.array([0.0, *true_logprobs(folder, part.tolist())])
        for part in np.split(batch.token_ids, np.cumsum(LENGTHS)[:-1])
    ]
    for logprobs in found:
        np.testing.assert_allclose(logprobs, np.concatenate(wanted), atol=1e-4)
    assert isinstance(memory, MemoryTicket)
    assert isinstance(published, FolderTicket)
    first, again = load_file(folder / "model.safetensors"), load_file(published.folder / "model.safetensors")
    assert (
        memory.weights.keys() - {"lm_head.weight"}
        == first.keys() - {"lm_head.weight"}
        == again.keys() - {"lm_head.weight"}
    )
    assert all(torch.equal(memory.weights[n], w) and torch.equal(again[n], w) for n, w in first.items())


async def test_positions_that_depend_on_the_length_are_refused_without_packing(tmp_path: Path) -> None:
    folder = write_model("longrope", tmp_path / "model")
    async with trainer(packing=False) as learning:
        with pytest.raises(ConfigError, match=r"depend on a sequence's length.*set trainer\.packing to true"):
            await learning.load(folder)
