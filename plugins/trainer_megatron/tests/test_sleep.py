"""Ranks that sleep have nothing on their devices, and go on as if they had not slept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from megatron_setup import Surrogate, build_batch

from ale_torch.ranks import Ranks
from ale_trainer_megatron import MegatronTrainer


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ranks_go_on_as_those_that_did_not_sleep(
    dtype: str, model_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    how = MegatronTrainer.Config(device="cpu", ranks=2, tensor_parallel=2, micro_batch_tokens=60, dtype=dtype)
    found = []
    for sleeps in (True, False):
        ranks = Ranks("sleeper:Sleeper", 2, ("cpu", how), threads=1, backend="gloo")
        try:
            ranks.call("load", model_folder("qwen2"), "current")
            ranks.call("load", model_folder("qwen2"), "reference")
            for seed in (1, 2):
                totals = ranks.call("update", build_batch(seed), Surrogate(), 1e-2, None)[0]
                if sleeps:
                    assert min(ranks.call("bytes_held")) > 0
                    ranks.call("sleep")
                    assert ranks.call("bytes_held") == [0, 0]
                found += [(sleeps, totals["loss"], totals["grad_norm"])]
                for role in ("current", "reference"):
                    found += [(sleeps, *ranks.call("logprobs", build_batch(9), role)[0])]
        finally:
            ranks.close()
    assert [f[1:] for f in found if f[0]] == [f[1:] for f in found if not f[0]]
    assert np.any(np.array(found[1][1:]))
