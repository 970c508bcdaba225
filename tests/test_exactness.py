"""However a batch is split, each of our losses gives the same gradient and metrics, to one part in a million.

The reference is one pass over padded rows with full logits. The others are packed sequences, small micro-batches,
logits computed in pieces, parts of the batch one after the other, and its shares in two processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import parallel_losses
import pytest
import torch
from parallel_losses import Found, algorithms, batch_of, learner, total

from ale_packing import select
from ale_testing.loss_samples import write_small_policy
from ale_trainer_torch.learner import Learner

ALGORITHMS = algorithms()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small model."""
    return write_small_policy(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def plain(model: Path) -> Learner:
    """One pass, padded rows, whole tables of logits."""
    return learner(model, packing=False)


@pytest.fixture(scope="module")
def others(model: Path) -> dict[str, Learner]:
    """Other ways to cut."""
    return {
        "end to end": learner(model),
        "end to end in small micro-batches, logits in chunks": learner(model, budget=60, logit_chunk=7),
        "a trajectory at a time, padded, a position's logits at a time": learner(
            model, packing=False, budget=1, logit_chunk=1
        ),
    }


@pytest.fixture(scope="module")
def two_processes(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    """What two processes came to together, by the algorithm's name."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, parallel_losses.__file__, str(rank), "2", folder / "meeting", model, folder / "out.pt"],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=200)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0], said
    return {name: Found(*came) for name, came in torch.load(folder / "out.pt").items()}


def same(found: Found, expected: Found, name: str, how: str) -> None:
    apart = float((found.gradient - expected.gradient).abs().max())
    assert apart < 1e-9 + 1e-6 * float(expected.gradient.abs().max()), f"{how}: the gradient is {apart:.2g} apart"
    assert found.loss == pytest.approx(expected.loss, rel=1e-6, abs=1e-9), how
    metrics = ALGORITHMS[name].loss.metrics
    assert metrics(found.metrics) == pytest.approx(metrics(expected.metrics), rel=1e-6, abs=1e-9), how


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_gradient_and_the_metrics_are_the_same_whichever_way_the_batch_is_cut(
    name: str, plain: Learner, others: dict[str, Learner], two_processes: dict[str, Found]
) -> None:
    algorithm = ALGORITHMS[name]
    batch = batch_of(algorithm, plain, imitated=name.endswith("imitation"))
    expected = total(plain, [batch], algorithm)
    assert float(expected.gradient.abs().max()) > 1e-4, "there must be something to be exact about"
    for how, by in others.items():
        same(total(by, [batch], algorithm), expected, name, how)
    rng = np.random.default_rng(len(name))
    order = rng.permutation(int(batch.trajectory[-1]) + 1)
    parts = [select(batch, part.tolist()) for part in np.array_split(order, 3)]
    same(total(others["end to end"], parts, algorithm), expected, name, "accumulated over random parts")
    same(two_processes[name], expected, name, "two processes")


@pytest.mark.parametrize("name", [n for n in ALGORITHMS if n.startswith("ipa")])
def test_the_mask_takes_part_in_what_is_compared(name: str, plain: Learner) -> None:
    algorithm = ALGORITHMS[name]
    found = algorithm.loss.metrics(total(plain, [batch_of(algorithm, plain)], algorithm).metrics)
    assert 0 < found["masked"] < 1
    assert found["ratio_std"] > 0
