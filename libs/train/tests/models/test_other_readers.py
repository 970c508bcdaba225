"""A tokenizer that transformers reads otherwise is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ale.session.tokenizer import train_tokenizer
from ale_train.models.other_readers import describe_other_reading


@pytest.mark.parametrize(("split_for", "model_type", "differs"), [("llama", "llama", False), ("llama", "qwen2", True)])
def test_a_tokenizer_that_transformers_replaces_rules_of_is_named(
    tmp_path: Path, split_for: str, model_type: str, differs: bool
) -> None:
    train_tokenizer(['{"name": "shell", "arguments": {"cmd": "ls"}}', "ls -la ../a.txt"] * 4, 400, split_for).save(
        tmp_path
    )
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    sentence = describe_other_reading(tmp_path)
    assert (sentence is not None) == differs
    assert sentence is None or "Qwen2Tokenizer makes" in sentence


def test_a_tokenizer_that_needs_code_of_the_folder_is_named_and_the_code_not_run(tmp_path: Path) -> None:
    train_tokenizer(["a b"], 300).save(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    file = tmp_path / "tokenizer_config.json"
    own = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["mine.Mine", None]}}
    file.write_text(json.dumps(json.loads(file.read_text()) | own))
    (tmp_path / "mine.py").write_text("raise SystemExit")
    assert "does not read the tokenizer" in str(describe_other_reading(tmp_path))
