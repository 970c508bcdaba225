"""`${...}` in run files, and secrets: the value of `${oc.env:KEY}` is used, but never written down.

1. OmegaConf resolves the data. A value that reads the environment, even through several references, is written (run
   folder, `ale config show`, observers) as the expression in the file; every other value is written as its result.
2. `Resolved.redact` replaces the value by `${oc.env:KEY}` wherever else it occurs: in messages and logs. `redact_json`
   does so inside JSON, whose keys and numbers it leaves unchanged.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from ale.errors import ConfigError
from ale.registry.validation import one_line_error

SHORTEST_SECRET = 6
"""Shorter values are not searched for in texts: they would be found everywhere."""
SETTING = re.compile(r"[-+]?[\d._]{1,7}(e[-+]?\d{1,3})?|true|false|null|none", re.IGNORECASE)
"""Values that are not searched for in texts either: seeds and switches, which are common in dates and sentences."""


@dataclass(frozen=True)
class Resolved:
    """Run data without interpolations: `data` is for the run, `public` to show, `file` to write and to load again."""

    data: dict[str, Any] = field(repr=False)
    public: dict[str, Any]
    file: dict[str, Any] = field(repr=False)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Value -> reference."""

    def redact(self, text: str) -> str:
        """Return the text with references in place of secrets, also of those that are quoted, in JSON or in a URL."""
        return _redact(text, self.secrets)


def redact_json(text: str, redact: Callable[[str], str], keep: Collection[str] = ()) -> str:
    """Return JSON whose texts are redacted; numbers, keys and the texts of the keys in `keep` stay unchanged.

    `redact` must find in JSON what it finds in the text that the JSON quotes, as `Resolved.redact` does.
    """
    if redact(text) == text:  # most texts hold no secret
        return text

    def change(match: re.Match[str]) -> str:
        quoted = match["text"]
        if quoted is None or match["key"] in keep:
            return match[0]
        plain = json.loads(quoted)
        redacted = redact(plain)
        if redacted == plain:
            return match[0]
        return match[0].removesuffix(quoted) + json.dumps(redacted, ensure_ascii=quoted.isascii())

    return _JSON_TEXT.sub(change, text)


def redact_data(data: Mapping[str, Any], redact: Callable[[str], str]) -> dict[str, Any]:
    """Return a mapping of plain data as `redact_json` changes its JSON; what JSON does not know becomes a text."""
    redacted: dict[str, Any] = json.loads(redact_json(json.dumps(data, default=str), redact))
    return redacted


_INSIDE = r'(?:[^"\\]|\\.)*+'
_JSON_TEXT = re.compile(rf'(?=")(?:"(?P<key>{_INSIDE})"\s*:\s*)?(?P<text>"{_INSIDE}")?')
"""It matches a text with the key before it, or a key before another value."""


def resolve(data: Mapping[str, Any], source: str) -> Resolved:
    """Replace every `${...}`. Raises a `ConfigError` that names the YAML path."""
    from omegaconf import OmegaConf

    if "oc.env" not in json.dumps(data):
        real = _interpolate(data, source)
        return Resolved(real, real, _map(real, _escape))
    with _environment() as asked:
        try:
            real = _interpolate(data, source)
        except ConfigError as error:
            raise ConfigError(_redact(str(error), _secrets(asked))) from None
        tree = OmegaConf.create(dict(data))
        public = _public(data, tree, asked, lambda text: text)
        file = _public(data, tree, asked, _escape)
    return Resolved(real, public, file, _secrets(asked))


@contextmanager
def _environment() -> Iterator[list[tuple[str, str | None]]]:
    """Record, inside the block, what the environment is asked for: (expression, value or None for a default)."""
    from omegaconf import OmegaConf
    from omegaconf.resolvers import oc

    # OmegaConf 2.4 has a new name for it, and warns of the old one.
    register: Callable[..., None] = getattr(OmegaConf, "register_resolver", None) or OmegaConf.register_new_resolver
    asked: list[tuple[str, str | None]] = []

    def ask(key, *default):  # type: ignore[no-untyped-def]  # OmegaConf converts arguments by their annotations
        asked.append((f"${{oc.env:{key}}}", os.environ.get(key)))
        return oc.env(key, *default)

    register("oc.env", ask, replace=True)
    try:
        yield asked
    finally:
        register("oc.env", oc.env, replace=True)


def _public(raw: Any, resolved: Any, asked: list[tuple[str, str | None]], change: Callable[[str], str]) -> Any:
    """Return `raw` resolved, except for texts that read the environment; `change` is applied to the other texts.

    Values that an expression makes from the environment, such as the items of a list, are added to `asked` too.
    """
    items = raw.items() if isinstance(raw, dict) else enumerate(raw)
    out: dict[Any, Any] = {}
    for key, value in items:
        if isinstance(value, dict | list):
            out[key] = _public(value, resolved[key], asked, change)
            continue
        before = len(asked)
        came_to = _plain(resolved[key])
        if len(asked) == before:
            out[key] = _map(came_to, change)
            continue
        out[key] = value
        if not isinstance(came_to, str):
            asked += [(value, text) for text in _texts(came_to)]
    return out if isinstance(raw, dict) else list(out.values())


def _plain(value: Any) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _secrets(asked: list[tuple[str, str | None]]) -> dict[str, str]:
    """Return value -> reference for the values that are searched for in texts."""
    found: dict[str, str] = {}
    for reference, value in asked:
        if value is not None and len(value) >= SHORTEST_SECRET and not SETTING.fullmatch(value):
            found.setdefault(value, reference)
    return found


def _redact(text: str, secrets: Mapping[str, str]) -> str:
    for secret, reference in sorted(secrets.items(), key=lambda item: -len(item[0])):
        plain = (secret, repr(secret)[1:-1], quote(secret, safe=""))
        quoted = [json.dumps(form, ensure_ascii=ascii)[1:-1] for form in plain for ascii in (True, False)]
        for form in sorted({*plain, *quoted}, key=len, reverse=True):
            text = text.replace(form, reference)
    return text


def _interpolate(data: Mapping[str, Any], source: str) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

    try:
        resolved = OmegaConf.to_container(OmegaConf.create(dict(data)), resolve=True, throw_on_missing=True)
    except RecursionError:
        raise ConfigError(f"{source}: an interpolation ${{...}} refers to itself.") from None
    except OmegaConfBaseException as error:
        key, what = explain(error)
        where = key or source
        missing = re.search(r"Environment variable '([^']*)' not found", what)
        if missing:
            raise ConfigError(
                f"{where}: the environment variable {missing[1]} is not set; set it, or give "
                f"${{oc.env:{missing[1]},...}} a default."
            ) from None
        missing_value = isinstance(error, MissingMandatoryValue)
        hint = "" if missing_value else " A text that is no interpolation is written \\${...}."
        raise ConfigError(f"{where}: {what}.{hint}") from None
    assert isinstance(resolved, dict)
    return resolved  # type: ignore[return-value]


def explain(error: Exception) -> tuple[str, str]:
    """Return where an error of OmegaConf is, and its message."""
    return getattr(error, "full_key", None) or "", one_line_error(str(error).partition("    full_key:")[0])


def _map(value: Any, change: Any) -> Any:
    """Return plain data in which every text is changed."""
    if isinstance(value, dict):
        return {key: _map(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_map(item, change) for item in value]
    return change(value) if isinstance(value, str) else value


def _escape(text: str) -> str:
    """Return a text with `${` escaped, so that OmegaConf leaves it unchanged."""
    return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", text)
