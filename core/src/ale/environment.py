"""The one place that reads environment variables of ALE's own."""

from __future__ import annotations

import os

from ale.errors import ConfigError


def chosen_plugins() -> frozenset[str] | None:
    """`ALE_PLUGINS=a,b`: the observers that may be loaded; None where it is not set (all may)."""
    value = os.environ.get("ALE_PLUGINS")
    return None if value is None else frozenset(name.strip() for name in value.split(",") if name.strip())


def secret(name: str, option: str) -> str:
    """The value of the environment variable that the user says holds a secret. Raises `ConfigError` where it is not set."""
    value = os.environ.get(name, "").strip()
    if not value:
        raise ConfigError(f"{option} names the environment variable {name}, which is not set.")
    return value
