"""The one place that reads environment variables of ALE's own."""

from __future__ import annotations

import os


def chosen_plugins() -> frozenset[str] | None:
    """`ALE_PLUGINS=a,b`: the observers that may be loaded; None where it is not set (all may)."""
    value = os.environ.get("ALE_PLUGINS")
    return None if value is None else frozenset(name.strip() for name in value.split(",") if name.strip())
