"""Engines that are servers keep their contract, with vLLM and SGLang themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import assert_keeps_contract

from ale_engines.environments import find_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("server", ["vllm", "sglang"])
def test_they_keep_their_contract(server: str, tmp_path: Path) -> None:
    if find_python(server) is None:
        pytest.skip(f"the environment of {server} is not installed: `ale engine install {server} --cpu`")
    settings = "{device: cpu, dtype: float32, threads: 1, max_batch: 32}"
    assert_keeps_contract(f"engine:{server}", settings, tmp_path, timeout_s=300)
