"""However a batch is split, each of our losses gives the same gradient and metrics, to one part in a million.

The reference is one pass over padded rows with full logits. The others are packed sequences, small micro-batches,
trajectories cut into several of them, logits computed in pieces, parts of the batch one after the other, and the model
sharded over several ranks.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from parallel_losses import Found, algorithms, batch_of, each_option_once, learner, total
from support.loss_samples import write_small_policy

from ale_torch.ranks import Ranks
from ale_train.batches import select
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
        "a sequence at a time, padded, a position's logits at a time": learner(
            model, packing=False, budget=1, logit_chunk=1
        ),
    }


@pytest.fixture(scope="module")
def over_ranks(model: Path) -> dict[int, dict[str, Found]]:
    """What 1, 2 and 4 ranks that share the model came to, by the algorithm's name."""
    found = {}
    for size, budget, names in ((1, 60, each_option_once()), (2, 60, ALGORITHMS), (4, 1000, each_option_once())):
        ranks = Ranks("parallel_losses:RankOfLosses", size, (model, budget), threads=1, backend="gloo")
        try:
            found[size] = ranks.call("compute", list(names))[0]
        finally:
            ranks.close()
    return found


def same(found: Found, expected: Found, name: str, how: str) -> None:
    apart = float((found.gradient - expected.gradient).abs().max())
    assert apart < 1e-9 + 1e-6 * float(expected.gradient.abs().max()), f"{how}: the gradient is {apart:.2g} apart"
    assert found.loss == pytest.approx(expected.loss, rel=1e-6, abs=1e-9), how
    metrics = ALGORITHMS[name].loss.metrics
    assert metrics(found.metrics) == pytest.approx(metrics(expected.metrics), rel=1e-6, abs=1e-9), how


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_gradient_and_the_metrics_are_the_same_whichever_way_the_batch_is_cut(
    name: str, plain: Learner, others: dict[str, Learner], over_ranks: dict[int, dict[str, Found]]
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
    for size, came in over_ranks.items():
        if name in came:
            same(came[name], expected, name, f"sharded over {size} ranks")


@pytest.mark.parametrize("name", [n for n in ALGORITHMS if n.startswith("ipa")])
def test_the_mask_takes_part_in_what_is_compared(name: str, plain: Learner) -> None:
    algorithm = ALGORITHMS[name]
    found = algorithm.loss.metrics(total(plain, [batch_of(algorithm, plain)], algorithm).metrics)
    assert 0 < found["masked"] < 1
    assert found["ratio_std"] > 0
