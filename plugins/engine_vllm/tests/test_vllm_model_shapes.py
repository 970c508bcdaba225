"""vLLM on a CPU serves what transformers computes from the same folder, at the start and after an update; or not at
all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from ale.errors import ConfigError
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import DriverContext
from ale.specs.engine import FolderTicket, MemoryTicket, PolicyVersion
from ale_engines.server.model_folder import read_model_folder
from ale_engines.server.python_environments import find_python
from ale_engines.server.settings import ServerSettings
from ale_engines.weights import fingerprint
from ale_engines.weights.tensor_files import read_folder
from ale_testing.model_shapes import REFUSED, SHAPES, SWITCH, true_logprobs, write_model
from ale_testing.served_models import ManyModels, many_models
from ale_vllm.replica import VllmReplica, read_fingerprint
from ale_vllm.server_arguments import SERVER

from .conftest import request

PYTHON = find_python("vllm", "cpu")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("vllm"),
    pytest.mark.skipif(PYTHON is None, reason="vLLM's environment is not installed: `ale engine install vllm --cpu`"),
]
COMMON = ("llama", "one KV head a head", "qwen2")
"""What the others have too, or the server of `test_vllm_server.py`."""
CONTEXTS = {"longrope": SWITCH, "dynamic": SWITCH}
"""Up to where a model with such positions is served."""
SETTINGS = ServerSettings(threads=1, max_batch=8, max_context=256, device="cpu")
PROMPT = tuple(range(3, 40))
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCH_COMPILE_DISABLE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1",
}  # fmt: skip


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManyModels]:
    """The program in which models are served one after the other."""
    assert PYTHON is not None
    program = [str(Path(__file__).with_name("many_models.py")), str(SERVER.parent)]
    work = tmp_path_factory.mktemp("vllm")
    environment = {**os.environ, **ENVIRONMENT, "TMPDIR": str(work)}
    with many_models(PYTHON, program, environment, work) as program_of_many:
        yield program_of_many


@pytest.mark.parametrize("name", [name for name in SHAPES if name not in REFUSED["vllm"] + COMMON])
def test_a_model_is_served_as_transformers_computes_it_also_after_an_update(
    name: str, vllm: ManyModels, tmp_path: Path
) -> None:
    folders = [write_model(name, tmp_path / str(seed), seed) for seed in range(2)]
    layout: dict[tuple[str, int], bool] = {}
    for served in vllm.serve(folders, CONTEXTS.get(name, 256)):
        assert served.far < 1e-4
        model = read_model_folder(served.folder, "vllm")
        sent = fingerprint.of_folder(served.folder, "float32", model.tied)
        fingerprint.compare(sent, read_fingerprint(served.fingerprint), "vllm", layout)
        assert sent.keys() == {name for name, _ in layout}
        assert all(layout.values())


@pytest.mark.parametrize("name", REFUSED["vllm"])
def test_what_vllm_cannot_compute_ends_its_start_or_its_first_request(
    name: str, vllm: ManyModels, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError):
        vllm.serve([write_model(name, tmp_path / "model")], 256)


async def test_experts_come_by_the_names_of_a_folder_or_of_a_state_dict(tmp_path: Path) -> None:
    old, new, newest = (write_model("experts", tmp_path / str(seed), seed) for seed in range(3))
    state = AutoModelForCausalLM.from_pretrained(newest).state_dict()
    assert state.keys() != read_folder(newest).keys()
    tickets = (FolderTicket(new), MemoryTicket(state))
    async with VllmReplica(SETTINGS, DriverContext(run_dir=tmp_path / "run")) as replica:
        await replica.load_model(old, byte_tokenizer())
        for number, (folder, ticket) in enumerate(zip((new, newest), tickets, strict=True), 1):
            await replica.load_weights(PolicyVersion(number, ticket))
            made = await replica.generate(request(PROMPT))
            wanted = true_logprobs(folder, [*PROMPT, *made.token_ids])[len(PROMPT) - 1 :]
            assert list(made.logprobs) == pytest.approx(wanted, abs=1e-4)


async def test_a_model_that_can_be_loaded_and_not_computed_is_refused(tmp_path: Path) -> None:
    folder = write_model("mamba", tmp_path / "model")
    async with VllmReplica(SETTINGS, DriverContext(run_dir=tmp_path / "run")) as replica:
        with pytest.raises(
            ConfigError, match=r"vllm 0 has loaded the model in .*'mamba'\) and cannot compute it\. Take"
        ):
            await replica.load_model(folder, byte_tokenizer())
