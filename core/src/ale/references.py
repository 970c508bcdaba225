"""`${...}` in run files, and secrets: what `${oc.env:KEY}` brings in is used, and never written down.

1. OmegaConf resolves the data. A value that asks the environment on its way, through however many references, is
   written (run folder, `ale config show`, observers) as the expression that the file has for it; every other value as
   what it came to.
2. `Resolved.redact` puts `${oc.env:KEY}` in place of the value wherever else it turns up: in messages and logs.
   `redact_json` does so inside JSON, whose keys and numbers it leaves alone.
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
from ale.validation import one_line

SHORTEST_SECRET = 6
"""Characters below which a value is not looked for in texts: it would be found everywhere."""
SETTING = re.compile(r"[-+]?[\d._]{1,7}(e[-+]?\d{1,3})?|true|false|null|none", re.IGNORECASE)
"""Values that are not looked for in texts either: a seed or a switch, which dates and sentences are full of."""


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
        return _redacted(text, self.secrets)


def redact_json(text: str, redact: Callable[[str], str], keep: Collection[str] = ()) -> str:
    """JSON whose texts are redacted; numbers, keys and the texts of the keys in `keep` stay as they are.

    `redact` must find in JSON what it finds in the text that the JSON quotes, as `Resolved.redact` does.
    """
    if redact(text) == text:  # most texts: nothing to look at one by one
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


_INSIDE = r'(?:[^"\\]|\\.)*+'
_JSON_TEXT = re.compile(rf'(?=")(?:"(?P<key>{_INSIDE})"\s*:\s*)?(?P<text>"{_INSIDE}")?')
"""A text, with the key before it; or a key before something else."""


def resolve(data: Mapping[str, Any], source: str) -> Resolved:
    """Replace every `${...}`. Raises `ConfigError` that names the YAML path."""
    from omegaconf import OmegaConf

    if "oc.env" not in json.dumps(data):
        real = _interpolated(data, source)
        return Resolved(real, real, _map(real, _escaped))
    with _environment() as asked:
        try:
            real = _interpolated(data, source)
        except ConfigError as error:
            raise ConfigError(_redacted(str(error), _secrets(asked))) from None
        tree = OmegaConf.create(dict(data))
        public = _public(data, tree, asked, lambda text: text)
        file = _public(data, tree, asked, _escaped)
    return Resolved(real, public, file, _secrets(asked))


@contextmanager
def _environment() -> Iterator[list[tuple[str, str | None]]]:
    """While it lasts, what is asked of the environment is noted: (expression, value or None for a default)."""
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
    """`raw` resolved, but for the texts that ask the environment; `change` is done to those that do not.

    What an expression makes of the environment, such as the items of a list, is noted in `asked` too.
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
    """Value -> reference, of the values that are looked for in texts."""
    found: dict[str, str] = {}
    for reference, value in asked:
        if value is not None and len(value) >= SHORTEST_SECRET and not SETTING.fullmatch(value):
            found.setdefault(value, reference)
    return found


def _redacted(text: str, secrets: Mapping[str, str]) -> str:
    for secret, reference in sorted(secrets.items(), key=lambda item: -len(item[0])):
        plain = (secret, repr(secret)[1:-1], quote(secret, safe=""))
        quoted = [json.dumps(form, ensure_ascii=ascii)[1:-1] for form in plain for ascii in (True, False)]
        for form in sorted({*plain, *quoted}, key=len, reverse=True):
            text = text.replace(form, reference)
    return text


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
