"""What the tests share: two models of one shape with random weights, and one server a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from support.temporary_files import nothing_left_in
from transformers import AutoModelForCausalLM, Qwen2Config

from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import DriverContext
from ale.specs.engine import GenerateRequest, Sampling
from ale_engines.server.python_environments import find_python
from ale_engines.server.settings import ServerSettings
from ale_sglang.replica import SglangReplica

CONTEXT = 512
VOCAB = 300
LONG = 500
"""So many tokens take longer than an interruption needs to come, also on a busy machine."""
SHAPE = Qwen2Config(
    vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=CONTEXT, tie_word_embeddings=True, bos_token_id=None, eos_token_id=5,
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _no_temporary_files_are_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Servers leave none, whichever way they end."""
    with nothing_left_in(tmp_path_factory.mktemp("t")):
        yield


def write_model(folder: Path, seed: int) -> Path:
    """Write weights large enough that mistakes show."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(SHAPE)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0, 0.3)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The folders of versions 0 to 2."""
    return {version: write_model(tmp_path_factory.mktemp(f"v{version}"), version) for version in range(3)}


@pytest.fixture(scope="session")
def settings() -> ServerSettings:
    """Of a small server; what needs them needs SGLang."""
    if find_python("sglang", "cpu") is None:
        pytest.skip("SGLang's environment is not installed: `ale engine install sglang --cpu`")
    return ServerSettings(max_context=CONTEXT, max_batch=8, threads=1, device="cpu", start_timeout_s=600)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(settings: ServerSettings, folders: dict[int, Path]) -> AsyncIterator[SglangReplica]:
    """A server with version 0."""
    async with SglangReplica(settings, DriverContext(seed=1)) as made:
        await made.load_model(folders[0], byte_tokenizer())
        yield made


async def wait_for_tokens(replica: SglangReplica, requests: Sequence[GenerateRequest]) -> None:
    """Return when the server has sent tokens of each of these requests, which run."""
    while not all(replica.sampled_so_far(asked).token_ids for asked in requests):  # noqa: ASYNC110 - a list, no event
        await asyncio.sleep(0.001)


def request(prompt: list[int], **sampling: object) -> GenerateRequest:
    """A request of twelve tokens, unless `sampling` says otherwise."""
    values: dict[str, object] = {"max_tokens": 12, "seed": 0, **sampling}
    return GenerateRequest(tuple(prompt), Sampling(**values))  # type: ignore[arg-type]
