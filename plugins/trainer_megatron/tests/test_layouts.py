"""However ranks share a model, it is the model of transformers, and it trains as the trainer `torch` trains it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from megatron_setup import Surrogate, build_batch, megatron, plain

from ale.specs.engine import FolderTicket

ModelFolder = Callable[[str], Path]
ALL = {"ranks": 4, "tensor_parallel": 2, "pipeline_parallel": 2, "sequence_parallel": True}


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("qwen2", {"ranks": 2, "tensor_parallel": 2}),
        ("qwen2", {"ranks": 2, "pipeline_parallel": 2, "gradient_checkpointing": True}),
        ("qwen2", ALL),
        ("qwen2 with windows", {"ranks": 1, "logit_chunk": 3}),
        ("qwen3", {"ranks": 4, "tensor_parallel": 2, "logit_chunk": 3}),
        ("qwen3_moe", ALL),
        ("qwen3_moe in every other layer", {"ranks": 2}),
        ("llama", {"ranks": 2, "tensor_parallel": 2, "sequence_parallel": True}),
    ],
)
async def test_it_trains_as_the_trainer_torch_does(
    name: str, layout: dict[str, Any], model_folder: ModelFolder, tmp_path: Path
) -> None:
    folder, batches = model_folder(name), [build_batch(seed) for seed in range(4)]
    assert max(np.bincount(batches[0].trajectory, batches[0].lengths)) > 60, "one must be more than a micro-batch"
    how = {"lr": 1e-3, "weight_decay": 0.1, "max_grad_norm": 0.05}
    async with plain(folder, **how) as expected, megatron(folder, **how, **layout) as found:
        # Logits are told by the log-probabilities of every token but the first of each sequence.
        assert np.abs(await found.logprobs(batches[3]) - await expected.logprobs(batches[3])).max() < 1e-5
        for batch in batches[:3]:
            one, other = await expected.update(batch, Surrogate()), await found.update(batch, Surrogate())
            assert one.keys() == other.keys()
            assert other["padding_waste"] == 0
            for metric in one.keys() - {"seconds", "padding_waste"}:
                assert other[metric] == pytest.approx(one[metric], rel=1e-5, abs=1e-7), metric
            assert one["grad_clipped"] == 1
        after = await found.logprobs(batches[3])
        assert np.abs(after - await expected.logprobs(batches[3])).max() < 1e-4
        policy = await found.publish("folder", tmp_path)
        assert isinstance(policy.ticket, FolderTicket)
        await expected.load(policy.ticket.folder)
        assert np.abs(after - await expected.logprobs(batches[3])).max() < 1e-5
