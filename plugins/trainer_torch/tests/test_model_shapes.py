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
from ale_testing.model_shapes import SHAPES, make_batch, true_batch_logprobs, write_model
from ale_trainer_torch import TorchTrainer


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
    wanted = true_batch_logprobs(folder, batch)
    for logprobs in found:
        np.testing.assert_allclose(logprobs, wanted, atol=1e-4)
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
