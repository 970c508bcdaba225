"""The page of metrics is whole: what a run stores has a row there, and no row is of something that is never stored."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ale_command import TINY, ale, summary_of
from parallel_losses import algorithms, batch_of, learner, total
from support.loss_samples import write_small_policy

from ale.store.run_store import RunStore

ROOT = Path(__file__).parents[2]
ROWS = set(re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs" / "metrics.md").read_text(), flags=re.MULTILINE))
SELDOM = {
    "dropped_groups",
    "lent",
    "parts/*",
    "pool/resets_failed/*",
    "rejected/*",
    "reward_*",
    "spare_length_ratio",
    "spares",
    "success_from_beginning",
    "switch_s",
}
"""Of a run in which something goes wrong, that has spares or lends its trainer's devices, a group has no spread, or
some tasks have an expert and others have none."""
FAMILIES = [row for row in ROWS if row.endswith("*")]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """The metrics of a whole tiny run by stage: two updates a step, held near where it began."""
    folder = tmp_path_factory.mktemp("run")
    file = folder / "run.yaml"
    file.write_text(TINY.format(runs=folder / "runs"))
    (folder / "text.txt").write_text("words and words again\n" * 50)
    text = folder / "text.txt"
    stage = f"{{data: [{text}], steps: 1, batch_tokens: 128, sequence_tokens: 64, weight_decay: [0.1, 0.01]}}"
    settings = (
        "algorithm.kl_coef=0.1",
        "algorithm.start=rollback",
        "algorithm.experts={demonstrations: false, demonstrate: 5}",
        "rl.updates_per_step=2",
        "rl.lr=0.01",
        "eval.every=0",
        "eval.n=2",
        f"cpt={{stages: [{stage}], heldout: [{text}]}}",
    )
    summary_of(ale("run", file, "--out", folder / "run", *settings))
    with RunStore.open(folder / "run") as store:
        return {stage: store.metrics(stage) for stage in store.stages()}


@pytest.fixture(scope="module")
def of_losses(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The metrics of every algorithm of ours in all its settings."""
    by = learner(write_small_policy(tmp_path_factory.mktemp("model")))
    names = set[str]()
    for algorithm in algorithms().values():
        batch = batch_of(algorithm, by, imitated=True)
        names |= {*batch.metrics, *algorithm.loss.metrics(total(by, [batch], algorithm).metrics)}
    return names


def row_of(metric: str) -> str | None:
    """The row that a metric has on the page."""
    if metric in ROWS:
        return metric
    return next((row for row in FAMILIES if metric.startswith(row[:-1])), None)


@pytest.mark.slow
def test_every_metric_of_a_run_and_of_every_loss_has_a_row(
    stored: dict[str, dict[str, list[tuple[int, float]]]], of_losses: set[str]
) -> None:
    names = {name for metrics in stored.values() for name in metrics} | of_losses
    missing = sorted(name for name in names if row_of(name) is None)
    assert not missing, f"give {', '.join(missing)} a row in docs/metrics.md"
    found = {row_of(name) for name in names}
    dead = sorted(ROWS - found - SELDOM)
    assert not dead, f"nothing stores {', '.join(dead)}, which docs/metrics.md tells of"


@pytest.mark.slow
def test_old_logprobs_are_of_the_policy_that_sampled_also_in_the_second_update_of_a_step(
    stored: dict[str, dict[str, list[tuple[int, float]]]],
) -> None:
    """Were they taken from the current one, every ratio would be 1."""
    rl = stored["rl"]
    assert all(updates == 2 for _, updates in rl["updates"])
    assert all(spread > 0 for _, spread in rl["ratio_std"])
    assert all(apart > 0 for _, apart in rl["kl_old"])


@pytest.mark.slow
def test_a_policy_that_learns_leaves_its_reference(stored: dict[str, dict[str, list[tuple[int, float]]]]) -> None:
    (_, first), (_, second) = stored["rl"]["kl_ref"]
    assert 0 < first < second


def test_each_row_says_what_it_is_in_what_unit() -> None:
    rows = [line for line in (ROOT / "docs" / "metrics.md").read_text().splitlines() if line.startswith("| `")]
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 5, row
        assert cells[2], row
    assert len({row_of("success/x"), row_of("pool/wait_s_p50"), row_of("nothing")}) == 3
