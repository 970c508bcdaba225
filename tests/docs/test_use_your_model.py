"""The page about using a trained policy does what it says, with a run of LoRA."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ale_command import TINY, ale, summary_of

PAGE = Path(__file__).parents[2] / "docs" / "use_your_model.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
assert BLOCKS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `runs/mine`."""
    folder = tmp_path_factory.mktemp("use")
    (folder / "run.yaml").write_text(TINY.format(runs=folder / "runs"))
    done = ale("run", folder / "run.yaml", "trainer.lora={rank: 2}", "eval=null", "--out", folder / "runs/mine")
    assert summary_of(done)["status"] == "completed"
    assert f"model: {folder / 'runs/mine/model/final'} " in done.stdout
    return folder


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_its_code_runs(block: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    exec(compile(block, str(PAGE), "exec"), {})


def test_an_adapter_over_its_base_is_the_merged_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM

    monkeypatch.chdir("/")  # the adapter names its base wherever it is loaded
    models = folder / "runs/mine/model"
    ids = torch.arange(3, 60)[None]
    adapted, merged = (
        cls.from_pretrained(models / name).eval()(ids).logits
        for cls, name in ((AutoPeftModelForCausalLM, "final_adapter"), (AutoModelForCausalLM, "final"))
    )
    assert (adapted - merged).abs().max() < 1e-4


def test_the_model_folder_holds_the_model_alone(folder: Path) -> None:
    assert {path.name for path in (folder / "runs/mine/model/final").iterdir()} == {
        *("config.json", "generation_config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
    }
