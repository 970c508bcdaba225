"""The cluster `ray` keeps its contract, on two nodes of this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kit import assert_keeps_contract


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_keeps_its_contract(tmp_path: Path) -> None:
    # A Ray of the run's own would be started a dozen times in one process here, where a run starts one: that takes a
    # minute more, and some of these starts leave a socket of Ray's open in the process.
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}  # else other tests have all the time
    from ray.cluster_utils import Cluster

    # Else each node starts a process for each CPU as soon as a run begins.
    head = {"num_cpus": 4, "include_dashboard": False, "_system_config": {"prestart_worker_first_driver": False}}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    nodes.add_node(num_cpus=4)
    places = "engine: {replicas: 2}, trainer: {ranks: 0}, rollout: {workers: 2}"
    try:
        assert_keeps_contract("cluster:ray", f"{{address: '{nodes.address}', {places}}}", tmp_path, timeout_s=300)
    finally:
        nodes.shutdown()
