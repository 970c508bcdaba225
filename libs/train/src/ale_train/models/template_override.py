"""The chat template of a run's model where the run file changes it: `model.chat_template` and
`model.template_arguments`.

Sessions, engines, nodes of a cluster and exported folders all read the template in the model's folder. So a run with
another template makes a folder of its own, in which everything but the template is a link to the model's files. The
arguments become values that the template sets itself where a caller does not: whoever loads an exported policy, with
transformers or a server, gets the prompts that it was trained on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ale.errors import ConfigError
from ale_train.config.run import ModelConfig

WITH_TEMPLATE = "with_template"
"""The name of that folder beside a run's models."""
TEMPLATE, NAMED, TOKENIZER = "chat_template.jinja", "additional_chat_templates", "tokenizer_config.json"


def apply_template(model: ModelConfig, folder: Path, own: Path) -> Path:
    """Return the model's folder if the run file changes nothing in its template; else write the folder `own` and return
    that. Raises `ConfigError`."""
    if model.chat_template is None and not model.template_arguments:
        return folder
    templates = read_templates(folder) if model.chat_template is None else {"default": _read(model.chat_template)}
    defaults = set_defaults(model.template_arguments)
    own.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.name not in (TEMPLATE, NAMED, TOKENIZER) and not (own / path.name).is_symlink():
            (own / path.name).symlink_to(path.resolve())
    settings = _tokenizer_settings(folder)
    settings.pop("chat_template", None)
    (own / TOKENIZER).write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
    for name, text in templates.items():
        path = own / TEMPLATE if name == "default" else own / NAMED / f"{name}.jinja"
        path.parent.mkdir(exist_ok=True)
        path.write_text(defaults + text)
    return own


def read_templates(folder: Path) -> dict[str, str]:
    """Return the chat templates of a model folder by their names; one without a name is `default`."""
    found = _tokenizer_settings(folder).get("chat_template") or {}
    if isinstance(found, list):  # as transformers writes several into one file
        found = {item["name"]: item["template"] for item in found}
    templates = {"default": found} if isinstance(found, str) else dict(found)
    if (folder / TEMPLATE).is_file():
        templates["default"] = (folder / TEMPLATE).read_text()
    return templates | {path.stem: path.read_text() for path in sorted((folder / NAMED).glob("*.jinja"))}


def set_defaults(arguments: Mapping[str, Any]) -> str:
    """Return the beginning of a template that sets these variables where its caller gives none."""
    if not arguments:
        return ""
    parts = (
        f"{{%- if {name} is not defined %}}{{%- set {name} = {_literal(value)} %}}{{%- endif %}}"
        for name, value in arguments.items()
    )
    return "".join(parts) + "\n"  # chat templates leave out the new line after a block


def _literal(value: Any) -> str:
    """Return a value of YAML as an expression of Jinja."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(str(key))}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def _tokenizer_settings(folder: Path) -> dict[str, Any]:
    path = folder / TOKENIZER
    try:
        found = json.loads(path.read_text()) if path.is_file() else {}
    except ValueError as error:
        raise ConfigError(f"model.path: {path} is not JSON ({error}); save the tokenizer again.") from error
    return dict(found)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise ConfigError(f"model.chat_template: {path} cannot be read: {reason}.") from None
