"""A run file may give the chat template and its variables; what the run exports has them, whoever loads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from transformers import PreTrainedTokenizerFast

from ale.errors import ConfigError
from ale.messages import Message
from ale.session.tokenizer import ChatTokenizer, byte_tokenizer
from ale_train.config.run import ModelConfig
from ale_train.models.policy_checks import check_policy
from ale_train.models.template_override import apply_template

MESSAGES = [Message("system", "s"), Message("user", "u"), Message("assistant", "a"), Message("user", "v")]
TEMPLATE = """
{%- macro turn(role, text) %}
    {{- '<|im_start|>' + role + '\\n' + text }}
    {%- if role == 'user' and style is defined %}
        {{- ' [' + style.tone + '|' + style.words | join('/') + ']' }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endmacro %}
{%- for message in messages %}{{- turn(message.role, message.content) }}{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}"""
ARGUMENTS: dict[str, Any] = {"enable_thinking": False, "style": {"tone": 'a "b"\n\\ü😀', "words": ["x", None, 1.5]}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder as far as prompts go."""
    folder = tmp_path / "model"
    folder.mkdir()
    byte_tokenizer().save(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "config.json").write_text(json.dumps({"vocab_size": 300}))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def of_transformers(folder: Path, **arguments: Any) -> Any:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder))
    messages = [message.to_openai() for message in MESSAGES]
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **arguments)


def test_arguments_give_the_prompts_of_transformers_with_the_same_arguments(folder: Path, tmp_path: Path) -> None:
    made = apply_template(ModelConfig(path=folder, template_arguments=ARGUMENTS), folder, tmp_path / "own")
    expected = of_transformers(folder, **ARGUMENTS)
    assert "</think>" in expected
    assert "x/None/1.5" in expected
    assert ChatTokenizer.load(made).render(MESSAGES, prompt=True) == expected
    assert of_transformers(made) == expected, "whoever loads the folder gets the run's prompts"
    assert of_transformers(made, enable_thinking=True) == of_transformers(
        folder, **{**ARGUMENTS, "enable_thinking": True}
    )


def test_a_template_that_begins_with_a_new_line_keeps_it(folder: Path, tmp_path: Path) -> None:
    (folder / "chat_template.jinja").write_text("\n\n" + TEMPLATE.strip())
    made = apply_template(ModelConfig(path=folder, template_arguments=ARGUMENTS), folder, tmp_path / "own")
    assert of_transformers(made) == of_transformers(folder, **ARGUMENTS)


def test_a_file_takes_the_place_of_the_models_templates(folder: Path, tmp_path: Path) -> None:
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("of the model")
    other = tmp_path / "other.jinja"
    other.write_text("{% for m in messages %}{{ m.role + ': ' + m.content + eos_token }}{% endfor %}")
    made = apply_template(ModelConfig(path=folder, chat_template=other), folder, tmp_path / "own")
    assert ChatTokenizer.load(made).render(MESSAGES[1:2], prompt=True) == "user: u<|im_end|>"
    assert not (made / "additional_chat_templates").exists()
    assert (made / "model.safetensors").read_bytes() == b"weights"
    assert apply_template(ModelConfig(path=folder, chat_template=other), folder, made) == made, "a run that goes on"


@pytest.mark.parametrize("as_list", [True, False])
def test_arguments_reach_each_named_template(folder: Path, tmp_path: Path, as_list: bool) -> None:
    (folder / "chat_template.jinja").unlink()
    named = {"default": TEMPLATE, "tool_use": TEMPLATE + "{{ tools | length }}"}
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = [{"name": n, "template": t} for n, t in named.items()] if as_list else named
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    made = apply_template(ModelConfig(path=folder, template_arguments=ARGUMENTS), folder, tmp_path / "own")
    for name in named:
        text = (
            (made / "chat_template.jinja") if name == "default" else made / "additional_chat_templates/tool_use.jinja"
        )
        assert text.read_text().endswith(named[name])
        assert "enable_thinking is not defined" in text.read_text()
    assert of_transformers(made, chat_template=None).count("</think>") == 1


def test_without_a_change_the_folder_is_the_models_own(folder: Path, tmp_path: Path) -> None:
    assert apply_template(ModelConfig(path=folder), folder, tmp_path / "own") == folder
    assert not (tmp_path / "own").exists()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"template_arguments": {"messages": []}, "path": "m"}, "no variable to set"),
        ({"template_arguments": {"a-b": 1}, "path": "m"}, "no variable to set"),
        ({"template_arguments": {"a": 1}}, "'template_arguments' is for the model that 'path' names"),
        ({"chat_template": "t.jinja", "scratch": {}}, "'chat_template' is for the model that 'path' names"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        ModelConfig.model_validate(settings)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% for %}", "no valid Jinja: line 1"),
        ("hello", "does not write what a user says"),
        ("{{ raise_exception('no users') }}", "cannot write a user's message: .*no users"),
        ("{{ messages[0].nothing.at_all }}", "cannot write a user's message"),
    ],
)
def test_a_template_that_cannot_work_is_refused_before_the_run(folder: Path, template: str, says: str) -> None:
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(ConfigError, match=says):
        check_policy(ModelConfig(path=folder), folder)


def test_a_vocabulary_with_more_tokens_than_the_model_is_refused_with_both_sizes(folder: Path) -> None:
    size = byte_tokenizer().vocab_size
    (folder / "config.json").write_text(json.dumps({"vocab_size": size - 10}))
    with pytest.raises(
        ConfigError, match=rf"has {size} tokens.*\(vocab_size in config.json\) {size - 10}: it has no row"
    ):
        check_policy(ModelConfig(path=folder), folder)
    for enough in (size, size + 64):
        (folder / "config.json").write_text(json.dumps({"text_config": {"vocab_size": enough}}))
        check_policy(ModelConfig(path=folder), folder)


def test_an_added_token_that_nobody_writes_needs_no_row(folder: Path) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.save_pretrained(str(folder))
    (folder / "config.json").write_text(json.dumps({"vocab_size": len(tokenizer) - 1}))
    check_policy(ModelConfig(path=folder), folder)
    (folder / "chat_template.jinja").write_text("<image>" + TEMPLATE)
    with pytest.raises(ConfigError, match="no row for '<image>'"):
        check_policy(ModelConfig(path=folder), folder)


def test_turns_without_an_end_are_refused(folder: Path) -> None:
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("eos_token")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(ConfigError, match="nothing ends the model's turns"):
        check_policy(ModelConfig(path=folder), folder)
