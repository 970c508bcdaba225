"""What the core's tests share: trajectories made by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ale.trajectory import Trajectory
from ale_testing.fake_packages import install as install
from ale_testing.sample_trajectory import build_trajectory


@pytest.fixture
def trajectory() -> Callable[..., Trajectory]:
    """Makes trajectories."""
    return build_trajectory
