"""This module has the fixtures that tests share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ale_command import FINISH
from run_files import MINIMAL, Load
from support.fake_packages import install as install

from ale.config.yaml_text import dump_yaml
from ale_train.config.load import LoadedConfig, load_run_config

FIRST = (
    "tests/security/",
    "tests/conformance/test_our_vllm",
    "tests/conformance/test_our_docker",
    "tests/test_engine_examples.py",
    "tests/conformance/test_our_",
    "tests/test_agents.py",
    "plugins/engine_vllm/",
    "plugins/engine_sglang/",
    "tests/test_documented_agents.py",
    "tests/test_sandbox_command.py",
    "tests/test_chaos_cluster.py",
    "tests/test_stalls.py",
    "tests/packaging/",
    "tests/test_cluster.py",
    "tests/conformance/",
    "tests/test_chaos.py",
    "plugins/cluster_ray/",
    "tests/test_exactness.py",
    "tests/test_pool.py",
)
"""What must not be disturbed by others, then what takes longest, so that all processes end at about the same time.
Servers of engines compute while containers mostly wait, so these take turns; those with a Ray of their own are apart,
since each of them takes both cores."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files in the order in which they are handed out; within a file nothing changes."""

    def rank(item: pytest.Item) -> int:
        return next((i for i, place in enumerate(FIRST) if item.nodeid.startswith(place)), len(FIRST))

    items.sort(key=rank)


@pytest.fixture
def run_file(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a run file whose runs go into the test's own folder."""

    def write(text: str) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(text.format(runs=tmp_path / "runs", finish=json.dumps(FINISH)))
        return path

    return write


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads a run file of this text, these bytes or this data."""

    def make(content: Any = MINIMAL, *overrides: str, name: str = "run.yaml") -> LoadedConfig:
        text = content if isinstance(content, (str, bytes)) else dump_yaml(content)
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_run_config(path, overrides)

    return make
