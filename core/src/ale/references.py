"""`${...}` in run files, and secrets: what `${oc.env:KEY}` brings in is used, and never written down.

1. OmegaConf resolves the data twice: once as it is, once with a mark in place of each value of the environment.
2. Where a text of the second outcome holds a mark, the first outcome holds something secret, through however many
   references it came. What is written (the run folder, `ale config show`, observers) has `${oc.env:KEY}` there.
3. `Resolved.redact` puts the reference in place of a secret wherever else it turns up: in error messages and logs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from ale.errors import ConfigError
from ale.validation import one_line

SHORTEST_SECRET = 4
"""Characters below which a value is not looked for in texts: it would be found everywhere."""


@dataclass(frozen=True)
class Resolved:
    """Run data without interpolations: `data` to run with, `public` to show, `file` to write and to load again."""

    data: dict[str, Any]
    public: dict[str, Any]
    file: dict[str, Any]
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Value -> reference."""

    def redact(self, text: str) -> str:
        """The text with references in place of secrets, also where they stand quoted, as JSON or in a URL."""
        for secret, reference in sorted(self.secrets.items(), key=lambda item: -len(item[0])):
            plain = (secret, repr(secret)[1:-1], quote(secret, safe=""))
            quoted = [json.dumps(form, ensure_ascii=ascii)[1:-1] for form in plain for ascii in (True, False)]
            for form in sorted({*plain, *quoted}, key=len, reverse=True):
                text = text.replace(form, reference)
        return text


def resolve(data: Mapping[str, Any], source: str) -> Resolved:
    """Replace every `${...}`. Raises `ConfigError` that names the YAML path."""
    real = _interpolated(data, source)
    if "oc.env" not in json.dumps(data):
        return Resolved(real, real, _map(real, _escaped))
    marks: dict[str, tuple[str, str]] = {}
    marked = _with_marks(data, source, marks)
    secrets = {value: reference for reference, value in marks.values() if len(value) >= SHORTEST_SECRET}

    def restored(text: str, escape: bool) -> str:
        parts = re.split("(__ale_env_[0-9]+__)", text)
        return "".join(marks[p][0] if p in marks else _escaped(p) if escape else p for p in parts)

    return Resolved(
        real, _map(marked, lambda text: restored(text, False)), _map(marked, lambda text: restored(text, True)), secrets
    )


def _with_marks(data: Mapping[str, Any], source: str, marks: dict[str, tuple[str, str]]) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from omegaconf.resolvers import oc

    def mark(key: str, *default: Any) -> str:
        name = f"__ale_env_{len(marks)}__"
        rest = "".join("," + ("null" if d is None else _quoted(str(d))) for d in default)
        marks[name] = (f"${{oc.env:{key}{rest}}}", str(oc.env(key, *default)))
        return name

    OmegaConf.register_new_resolver("oc.env", mark, replace=True)
    try:
        return _interpolated(data, source)
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


def _interpolated(data: Mapping[str, Any], source: str) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

    try:
        resolved = OmegaConf.to_container(OmegaConf.create(dict(data)), resolve=True, throw_on_missing=True)
    except RecursionError:
        raise ConfigError(f"{source}: an interpolation ${{...}} refers to itself.") from None
    except OmegaConfBaseException as error:
        where = getattr(error, "full_key", None) or source
        what = one_line(str(error).partition("    full_key:")[0])
        missing = re.search(r"Environment variable '([^']*)' not found", what)
        if missing:
            raise ConfigError(
                f"{where}: the environment variable {missing[1]} is not set; set it, or give ${{oc.env:{missing[1]},...}} a default."
            ) from None
        plain = isinstance(error, MissingMandatoryValue)
        raise ConfigError(f"{where}: {what}.{'' if plain else _HINT}") from None
    assert isinstance(resolved, dict)
    return resolved  # type: ignore[return-value]


_HINT = " A text that is no interpolation is written \\${...}."


def _map(value: Any, change: Any) -> Any:
    """Plain data with every text changed."""
    if isinstance(value, dict):
        return {key: _map(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_map(item, change) for item in value]
    return change(value) if isinstance(value, str) else value


def _escaped(text: str) -> str:
    """A text with `${` in it as OmegaConf must find it to leave it as it is."""
    return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", text)


def _quoted(text: str) -> str:
    if re.fullmatch(r"[\w.-]+", text):
        return text
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
