"""The fixture of the report's tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ale.trajectory import Trajectory
from ale_testing.sample_trajectory import build_trajectory


@pytest.fixture
def trajectory() -> Callable[..., Trajectory]:
    """Makes trajectories."""
    return build_trajectory
