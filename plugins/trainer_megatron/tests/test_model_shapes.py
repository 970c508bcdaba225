"""The trainer computes what transformers computes from the same folder, or refuses it when it is loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from megatron_setup import megatron

from ale.errors import ConfigError
from ale_testing.model_shapes import REFUSED, SHAPES, make_batch, true_batch_logprobs, write_model


@pytest.mark.parametrize("name", [name for name in SHAPES if name not in REFUSED["megatron"]])
async def test_each_sequence_gets_the_log_probabilities_that_it_has_alone(name: str, tmp_path: Path) -> None:
    folder, batch = write_model(name, tmp_path / "model"), make_batch()
    async with megatron(folder) as trainer:
        found = await trainer.logprobs(batch)
    np.testing.assert_allclose(found, true_batch_logprobs(folder, batch), atol=1e-4)


async def test_others_are_refused_with_the_trainer_that_takes_them(tmp_path: Path) -> None:
    async with megatron() as trainer:
        for name in REFUSED["megatron"]:
            with pytest.raises(ConfigError, match=r"The trainer 'megatron' (trains|knows) .*take the trainer 'torch'"):
                await trainer.load(write_model(name, tmp_path / name))
