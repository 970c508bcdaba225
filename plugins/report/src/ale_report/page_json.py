"""Data for the report page: any value as JSON that is safe inside a `<script type="application/json">` element.

- Dataclasses become objects; fields that are None or empty are left out, so that a page of many rollouts stays small.
- JSON knows no NaN: a number that is not finite becomes the text "NaN", "Infinity" or "-Infinity".
- Text that an agent wrote may be hostile. `<`, `>` and `&` are escaped, so no text can end the element or open a
  comment; `show_controls` replaces control characters by visible ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from markupsafe import Markup

_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {127: 0x2421}
_DIRECTIONS = {code: f"[U+{code:04X}]" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
_VISIBLE: dict[int, int | str] = {**_CONTROLS, **_DIRECTIONS}
_AS_THEY_ARE = frozenset({str, int, bool, type(None)})
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def to_plain(value: Any) -> Any:
    """The value as objects, lists, strings and finite numbers of at most six significant digits."""
    kind = type(value)
    if kind is float:
        if math.isfinite(value):
            return int(value) if value.is_integer() and abs(value) < 1e15 else float(f"{value:.6g}")
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if kind in _AS_THEY_ARE:
        return value
    if kind is tuple or kind is list:
        return [to_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    return value.plain if hasattr(kind, "plain") else plain_fields(value)


def plain_fields(value: Any) -> dict[str, Any]:
    """A dataclass as an object; `to_plain` uses its property `plain`, if it has one, in place of this."""
    named = ((name, getattr(value, name)) for name in _names(value.__class__))
    return {name: to_plain(item) for name, item in named if item is not None and item != () and item != ""}


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def encode(value: Any) -> str:
    """The value as compact JSON in ASCII."""
    return json.dumps(to_plain(value), separators=(",", ":"), allow_nan=False)


def script_json(value: Any) -> Markup:
    """The value as JSON that may stand in a script element."""
    return Markup(encode(value).translate(_ESCAPES))


def show_controls(text: str) -> str:
    """The text with control characters and changes of writing direction shown instead of obeyed."""
    return text.translate(_VISIBLE)
