"""This is the only module that reads ALE's own environment variables."""

from __future__ import annotations

import os

from ale.errors import ConfigError


def allowed_observers() -> frozenset[str] | None:
    """Return the observers that may be loaded, from `ALE_PLUGINS=a,b`; None if it is not set (all may)."""
    value = os.environ.get("ALE_PLUGINS")
    return None if value is None else frozenset(name.strip() for name in value.split(",") if name.strip())


def read_secret(name: str, option: str) -> str:
    """Return the value of an environment variable that holds a secret. Raises `ConfigError` if it is not set."""
    value = os.environ.get(name, "").strip()
    if not value:
        raise ConfigError(f"{option} names the environment variable {name}, which is not set.")
    return value
