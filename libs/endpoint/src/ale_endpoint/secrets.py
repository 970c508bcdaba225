"""Secrets that options name by their environment variable."""

from __future__ import annotations

import os

from ale.errors import ConfigError


def read_secret(name: str, option: str) -> str:
    """Return the value of an environment variable that holds a secret. Raises `ConfigError` if it is not set."""
    value = os.environ.get(name, "").strip()
    if not value:
        raise ConfigError(f"{option} names the environment variable {name}, which is not set.")
    return value
