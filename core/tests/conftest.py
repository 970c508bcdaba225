"""What the core's tests share: trajectories made by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.fake_packages import install as install
from support.sample_trajectory import build_trajectory

from ale.trajectory import Trajectory


@pytest.fixture
def trajectory() -> Callable[..., Trajectory]:
    """Makes trajectories."""
    return build_trajectory
