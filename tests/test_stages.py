"""These tests run all supervised stages: the whole example, and each of its parts from a model folder."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from contextlib import chdir, redirect_stderr
from io import StringIO
from pathlib import Path

import pytest
from ale_command import REPOSITORY, ale, summary_of

from ale.store.run_store import RunStore
from ale_train import run

RunFile = Callable[[str], Path]

CPT = """
name: cpt
run_dir: {runs}
model: {{path: MODEL}}
tasks: {{use: bash, families: [write]}}
engine: {{use: torch, threads: 1, max_batch: 4}}
trainer: {{use: torch, threads: 1}}
rollout: {{concurrency: 4, max_calls: 2, max_tokens: 8, max_context: 512}}
cpt: {{stages: [{{data: [TEXT], steps: 2, batch_tokens: 64, sequence_tokens: 32}}]}}
eval: {{episodes: 1}}
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of the example."""
    folder = tmp_path_factory.mktemp("stages") / "run"
    with chdir(REPOSITORY), redirect_stderr(StringIO()) as shown:
        result = run("examples/stages.yaml", out=folder)
    assert result.summary["status"] == "completed"
    assert "stage 2: " in shown.getvalue()
    assert "held-out perplexity after stage 2" in shown.getvalue()
    return result.folder


def test_the_example_runs_its_stages_in_order_and_keeps_a_model_of_each(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    assert list(summary["heldout"]) == ["before_sft", "after_sft"]
    assert {"demonstrations", "pretraining", "supervised"} <= set(summary["seconds"])
    for name in ("initial", "cpt", "sft", "final"):
        assert (finished / "model" / name / "model.safetensors").is_file()
    for name in ("cpt", "sft"):
        assert (finished / "model" / name / "tokenizer.json").is_file(), "a folder that model.path takes"
    assert "CPT step" in (finished / "report.html").read_text()


def test_pre_training_lowers_the_perplexity_of_text_that_it_never_saw(finished: Path) -> None:
    with RunStore.open(finished) as store:
        cpt = {name: dict(values) for name, values in store.metrics("cpt").items()}
    perplexity = cpt["heldout_perplexity"]
    assert list(perplexity) == [0, 12, 20], "before, and after each stage"
    assert perplexity[0] > 2 * perplexity[12] > 2 * perplexity[20] > 2
    assert cpt["heldout_loss"][20] == pytest.approx(math.log(perplexity[20]))
    assert list(cpt["loss"]) == list(range(1, 21))
    assert cpt["tokens_per_s"][20] > 0


def test_the_weight_decay_stands_still_in_stage_one_and_falls_along_a_line_in_stage_two(finished: Path) -> None:
    with RunStore.open(finished) as store:
        cpt = {name: dict(values) for name, values in store.metrics("cpt").items()}
    decay = [cpt["weight_decay"][step] for step in range(1, 21)]
    assert decay[:12] == [0.1] * 12
    assert decay[12:] == pytest.approx([0.1 - 0.09 * i / 7 for i in range(8)])
    assert set(cpt["lr"].values()) == {3e-3}
    assert cpt["loss_tokens"][1] == 16 * 255, "every token but the first of each sequence"
    assert cpt["loss_tokens"][20] == 8 * 511


def test_stage_two_of_fine_tuning_is_on_the_curated_demonstrations_with_rules_of_its_own(finished: Path) -> None:
    with RunStore.open(finished) as store:
        sft = {name: dict(values) for name, values in store.metrics("sft").items()}
        made = list(store.trajectories("stage = 'demonstrations'"))
    assert [sft["stage"][step] for step in (0, 29, 30, 44)] == [1, 1, 2, 2]
    assert sft["lr"][0] < sft["lr"][12] > sft["lr"][29]
    assert sft["lr"][32] > sft["lr"][44], "each stage has a warm-up and a cosine of its own"
    assert any(chunk.error for t in made for chunk in t.chunks), "or nothing is to be masked"
    assert sum(sft["masked_error"][step] for step in range(30)) > 0
    assert sum(sft["masked_error"][step] for step in range(30, 45)) == 0, "it keeps demonstrations without errors"
    assert sft["loss"][44] < sft["loss"][0]


def test_pre_training_alone_goes_from_a_model_folder(finished: Path, run_file: RunFile, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("some words to learn from, again and again\n" * 20)
    text = CPT.replace("MODEL", str(finished / "model" / "cpt")).replace("TEXT", str(tmp_path / "text.txt"))
    summary = summary_of(ale("run", run_file(text), "--out", tmp_path / "run"))
    assert list(summary["heldout"]) == ["after_cpt"]
    assert (tmp_path / "run" / "model" / "cpt" / "model.safetensors").is_file()
    assert not (tmp_path / "run" / "model" / "sft").exists()
    shutil.rmtree(tmp_path / "run" / "model" / "final")
    done = ale("eval", tmp_path / "run", "--episodes", "1", f"run_dir={tmp_path / 'evals'}")
    assert summary_of(done)["status"] == "completed", "the most trained policy that there is"


def test_a_stage_that_keeps_nothing_is_a_sentence_before_anything_is_trained(run_file: RunFile, tmp_path: Path) -> None:
    file = run_file((REPOSITORY / "examples/stages.yaml").read_text().replace("{", "{{").replace("}", "}}"))
    settings = ["cpt=null", "sft.demonstrations.count=4", "sft.stages.1.keep.min_turns=50", "eval.episodes=1"]
    done = ale("run", file, *settings, "--out", tmp_path / "run")
    assert done.returncode == 1
    assert "sft.stages.1.keep leaves none of 4 demonstrations" in done.stderr
    assert not (tmp_path / "run" / "model" / "sft").exists()
