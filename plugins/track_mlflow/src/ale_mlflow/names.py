"""Nested data as the flat names and values that MLflow takes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ale.messages import whole_characters

LONGEST_NAME, LONGEST_TEXT = 250, 5000
"""Characters; MLflow refuses longer names, and longer values of parameters and tags."""


def flatten(data: Mapping[str, Any], separator: str, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings, each under the keys that lead to it."""
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, separator, f"{above}{key}{separator}")
        else:
            yield f"{above}{key}", value


def allowed_name(name: str) -> str:
    """Return a name with only characters that MLflow allows, and without empty parts or `..` between its slashes."""
    name = name.replace("@", "_at_").replace("^", "_all_")  # pass@2 and pass^2 stay two names
    parts = [re.sub(r"[^\w .:-]", "_", part, flags=re.ASCII) for part in name.split("/")]
    return "/".join(part if part.strip(".") else "_" for part in parts)[:LONGEST_NAME].rstrip("/")


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def as_text(value: Any) -> str:
    """Return a value as a parameter or a tag shows it: a text as it is, anything else as JSON."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return whole_characters(text)[:LONGEST_TEXT]
