"""Tests of run files share this: the smallest valid one, and the sentences that refuse another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from ale.errors import ConfigError
from ale_train.config.load import LoadedConfig

MINIMAL = {"tasks": "bash", "engine": {"use": "scripted", "answers": ["hi"]}, "trainer": None}
quick = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
Load = Callable[..., LoadedConfig]


def mistakes(load: Load, content: Any = MINIMAL, *overrides: str) -> list[str]:
    """The sentences that refuse a configuration."""
    with pytest.raises(ConfigError) as caught:
        load(content, *overrides)
    return str(caught.value).splitlines()


def outcome(load: Load, content: Any, *overrides: str) -> str:
    """The sentences that refuse a configuration, or 'valid'; any other exception fails the test."""
    try:
        load(content, *overrides)
    except ConfigError as error:
        return str(error)
    return "valid"
