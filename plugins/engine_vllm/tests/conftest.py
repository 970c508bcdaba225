"""Tiny models that vLLM can serve on a CPU, and the truth about them from transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.temporary_files import nothing_left_in
from transformers import AutoModelForCausalLM, Qwen2Config

from ale.specs.engine import GenerateRequest, Generation, Sampling

VOCAB = 80
"""No multiple of 64, to which vLLM pads the embedding."""
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
    "eos_token_id": None,
}
ModelOf = Callable[[bool, int], Path]


@pytest.fixture(scope="module", autouse=True)
def _no_temporary_files_are_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Servers leave none, whichever way they end."""
    with nothing_left_in(tmp_path_factory.mktemp("t")):
        yield


@pytest.fixture(scope="session")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> ModelOf:
    """Write the model `tied` (or not) with weights of that seed; the weights are large, so that mistakes show."""
    made: dict[tuple[bool, int], Path] = {}

    def write(tied: bool, seed: int) -> Path:
        if (tied, seed) not in made:
            torch.manual_seed(seed)
            model = make_model(tied)
            path = made[tied, seed] = tmp_path_factory.mktemp(f"model-{tied}-{seed}")
            model.save_pretrained(path)
        return made[tied, seed]

    return write


def make_model(tied: bool, **shape: Any) -> Any:
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(Qwen2Config(**SHAPE | shape, tie_word_embeddings=tied))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0, 0.2)
    return model


def logprobs_of(folder: Path, prompt: tuple[int, ...], generation: Generation) -> list[float]:
    """The log-probabilities of a generation's tokens under the model in a folder, by transformers."""
    auto: Any = AutoModelForCausalLM
    with torch.no_grad():
        logits = auto.from_pretrained(folder)(torch.tensor([[*prompt, *generation.token_ids]])).logits[0]
    table = torch.log_softmax(logits.float(), -1)[len(prompt) - 1 : -1]
    return table.gather(-1, torch.tensor(generation.token_ids)[:, None])[:, 0].tolist()  # type: ignore[no-any-return]


def request(prompt: tuple[int, ...] = (3, 4, 5, 6), **sampling: Any) -> GenerateRequest:
    """A request of twelve tokens with seed 0, unless `sampling` says otherwise."""
    return GenerateRequest(prompt, Sampling(**{"max_tokens": 12, "seed": 0, **sampling}))
