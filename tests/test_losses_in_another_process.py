"""Each of our losses gives the same gradient when it is pickled into another process.

As a script this module is the other process: it reads pickled losses and inputs from one file and writes gradients into
another. It makes no algorithm, because the pickle holds everything that a loss needs.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch


def gradient(loss: Any, inputs: Any) -> torch.Tensor:
    """The slope of the loss in each token's log-probability."""
    logprobs = inputs.logprobs.detach().requires_grad_()
    (slope,) = torch.autograd.grad(loss(replace(inputs, logprobs=logprobs)).loss, logprobs)
    return slope


def main(given: Path, out: Path) -> None:
    """Compute the gradients of pickled losses."""
    cases = pickle.loads(given.read_bytes())
    torch.save({name: gradient(loss, inputs) for name, (loss, inputs) in cases.items()}, out)


def test_every_loss_gives_the_same_gradient_in_another_process(tmp_path: Path) -> None:
    from parallel_losses import algorithms
    from support.loss_samples import loss_input, random_rollouts

    from ale.specs.driver import DriverContext
    from ale_sft import SFT

    cases = {}
    for name, algorithm in {**algorithms(), "sft": SFT(SFT.Config(), DriverContext())}.items():
        rollouts = random_rollouts(4)
        batch = algorithm.batch(rollouts)
        assert batch is not None
        if algorithm.critic:
            batch = replace(batch, columns={"values": np.zeros(len(batch.token_ids), np.float32)})
        if algorithm.reference:
            batch = replace(batch, reference_logprobs=batch.engine_logprobs)
        batch = algorithm.credit(batch, rollouts)
        engine = batch.engine_logprobs[batch.chunk_ids >= 0]
        old, new, reference = (engine + 0.3 * np.sin(i + np.arange(len(engine))) for i in range(3))
        inputs = loss_input(batch, new.tolist(), old.tolist(), reference=reference.tolist())
        values = None if inputs.values is None else inputs.values.detach()
        cases[name] = (algorithm.loss, replace(inputs, logprobs=inputs.logprobs.detach(), values=values))
    assert len(cases) > 80
    (tmp_path / "cases.pkl").write_bytes(pickle.dumps(cases))
    subprocess.run([sys.executable, __file__, tmp_path / "cases.pkl", tmp_path / "out.pt"], check=True, timeout=200)
    found = torch.load(tmp_path / "out.pt")
    for name, (loss, inputs) in cases.items():
        here = gradient(loss, inputs)
        assert float(here.abs().max()) > 0, name
        assert torch.equal(found[name], here), name


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
