"""Folders of tiny models of every shape."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from megatron_setup import CONFIGS
from transformers import AutoModelForCausalLM


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of a tiny model of that name."""

    @functools.cache
    def make(name: str) -> Path:
        folder = tmp_path_factory.mktemp("model")
        torch.manual_seed(3)
        auto: Any = AutoModelForCausalLM
        model = auto.from_config(CONFIGS[name])
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:  # else norms are 1 and biases 0, which hides a wrong order
                    parameter.add_(0.1 * torch.randn_like(parameter))
        model.save_pretrained(str(folder))
        return folder

    return make
