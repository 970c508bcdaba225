"""This is the only module that reads ALE's own environment variables."""

from __future__ import annotations

import os


def allowed_observers() -> frozenset[str] | None:
    """Return the observers that may be loaded, from `ALE_PLUGINS=a,b`; None if it is not set (all may)."""
    value = os.environ.get("ALE_PLUGINS")
    return None if value is None else frozenset(name.strip() for name in value.split(",") if name.strip())
