"""Converts YAML to plain data and back.

OmegaConf reads it: it refuses a repeated key, an anchor that refers to itself and anchors that multiply, reads `1e-3`
as a number and `2026-01-01` as a text. This module also refuses values that JSON cannot express.
"""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

from ale.config.references import explain
from ale.errors import ConfigError
from ale.registry.validation import format_value, one_line_error


def parse_yaml(text: str, source: str) -> Any:
    """Return YAML as plain data. Raises a `ConfigError` that names `source`, and line and column if they are known."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        # Read as the value of an override, a text keeps its type: OmegaConf has no other public way to read with its
        # own rules for YAML but `OmegaConf.create`, which makes `{word: None}` of a single word, `{}` of an empty file.
        holder: Any = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))
    except RecursionError:
        raise ConfigError(f"{source}: the values are nested too deeply.") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = error.problem or error.context or "this is not YAML"
        raise ConfigError(f"{source}{place}: {one_line_error(problem)}.") from None
    except OmegaConfBaseException as error:
        key, what = explain(error)
        raise ConfigError(f"{source}: '{key.removeprefix('value.')}': {what}.") from None
    except Exception as error:  # PyYAML's constructors raise KeyError, IndexError and others, as for '!!bool x'
        raise ConfigError(f"{source}: this is not YAML: {one_line_error(error)}.") from None
    _check_plain(holder["value"], source, "")
    return holder["value"]


def _check_plain(value: Any, source: str, path: str) -> None:
    where = f"{source}: '{path}'" if path else source
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ConfigError(f"{where}: the key {format_value(key)} is not a text; put it in quotes.")
            _check_plain(item, source, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            _check_plain(item, source, f"{path}.{i}")
    elif isinstance(value, float) and math.isnan(value):
        raise ConfigError(f"{where} is not a number (.nan).")
    elif value is not None and not isinstance(value, (str, int, float)):
        raise ConfigError(f"{where} is a {type(value).__name__}; write a number, a text, a list or a mapping.")


def dump_yaml(data: Any) -> str:
    """Return plain data as YAML that `parse_yaml` reads back unchanged."""
    return yaml.dump(data, Dumper=_QuotingDumper, sort_keys=False, allow_unicode=True, width=120)


class _QuotingDumper(yaml.SafeDumper):
    """It puts quotes around texts that a reader would take for a number, and around unusual line breaks."""


def _text(dumper: _QuotingDumper, value: str) -> yaml.ScalarNode:
    style = '"' if re.search(r"^[-+.\d_]+[eE]|[\x85\u2028\u2029\ufeff]", value) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style)


_QuotingDumper.add_representer(str, _text)
