"""The cluster `ray` keeps its contract, on two nodes of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import assert_keeps_contract
from support.ray_nodes import ray_nodes


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_keeps_its_contract(tmp_path: Path) -> None:
    # A Ray of the run's own would be started a dozen times in one process here, where a run starts one: that takes a
    # minute more, and some of these starts leave a socket of Ray's open in the process.
    places = "engine: {replicas: 2}, trainer: {ranks: 0}, rollout: {workers: 2}"
    with ray_nodes(2, cpus=4) as address:
        assert_keeps_contract("cluster:ray", f"{{address: '{address}', {places}}}", tmp_path, timeout_s=300)
