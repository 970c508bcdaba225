"""A model whose rotary positions a server computes otherwise than transformers is refused before the server starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ale.errors import ConfigError
from ale_engines.server.model_folder import ModelFolder
from ale_engines.server.rotary_positions import check_rotary_positions, list_rotary_settings

LONGROPE: dict[str, Any] = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0], "long_factor": [2.0],
    "original_max_position_embeddings": 32,
}  # fmt: skip


def model(**config: Any) -> ModelFolder:
    return ModelFolder(Path("phi"), {"max_position_embeddings": 256, **config}, {}, 0)


@pytest.mark.parametrize(
    "config",
    [
        {"rope_parameters": LONGROPE},
        {"rope_parameters": {"full_attention": LONGROPE, "sliding_attention": {"rope_type": "default"}}},
        {"text_config": {"rope_parameters": LONGROPE, "max_position_embeddings": 256}},
        {"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 32},
        {"rope_scaling": {"type": "su"}, "original_max_position_embeddings": 32},
    ],
)
def test_longrope_is_served_up_to_the_length_after_which_its_positions_change(config: dict[str, Any]) -> None:
    check_rotary_positions(model(**config), 32, "vllm")
    with pytest.raises(
        ConfigError, match=r"model in phi .*'longrope'.*longer than 32 tokens.*max_context to at most 32"
    ):
        check_rotary_positions(model(**config), 33, "vllm")


@pytest.mark.parametrize(("own", "served"), [({}, True), ({"factor": 8.0}, True), ({"factor": 4.0}, False)])
def test_longrope_that_scales_attention_otherwise_than_servers_is_refused(own: dict[str, Any], served: bool) -> None:
    given = model(rope_parameters={**LONGROPE, **own})
    if served:
        check_rotary_positions(given, 32, "vllm")
        return
    with pytest.raises(ConfigError, match="which vllm computes otherwise than transformers"):
        check_rotary_positions(given, 32, "vllm")


def test_other_types_are_named_with_their_settings() -> None:
    config = {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}
    assert [(kind, rope["factor"]) for kind, rope in list_rotary_settings(config)] == [("yarn", 4.0)]
    assert [kind for kind, _ in list_rotary_settings({"rope_theta": 1e4})] == ["default"]
    check_rotary_positions(model(**config), 256, "vllm")
