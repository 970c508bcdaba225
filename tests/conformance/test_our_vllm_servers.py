"""The engine `vllm` keeps its contract, with vLLM itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import assert_server_keeps_contract


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_it_keeps_its_contract(tmp_path: Path) -> None:
    assert_server_keeps_contract("vllm", tmp_path)
