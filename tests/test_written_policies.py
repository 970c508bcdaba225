"""Every policy that ALE writes is the same one in transformers, in vLLM and in ALE: its tokens, its log-probabilities,
its replies. `test_end_to_end.py` has those of a whole run."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from ale_command import TINY, ale, summary_of
from safetensors.torch import load_file, save_file
from support.read_alike import TEXTS, assert_read_alike

from ale.session.tokenizer import ChatTokenizer, train_tokenizer
from ale.specs.driver import DriverContext
from ale.specs.trainer import TrainerBackend
from ale_engine_torch import TorchEngine
from ale_engines.server.python_environments import find_python
from ale_engines.server.settings import ServerSettings
from ale_testing.sample_batches import mixed_group, pack_trajectories
from ale_testing.test_trainer import LIKELIHOOD
from ale_train.config.scratch_model import ScratchModel
from ale_train.models.export import export_model
from ale_train.models.scratch import write_scratch_model
from ale_trainer_torch import TorchTrainer
from ale_vllm.replica import VllmReplica

TRAINERS: dict[str, tuple[str, dict[str, Any]]] = {
    "one process": ("torch", {}),
    "LoRA, merged": ("torch", {"lora": {"rank": 4}}),
    "FSDP of one rank": ("torch", {"offload": True}),
    "bfloat16": ("torch", {"dtype": "bfloat16"}),
    "Megatron": ("megatron", {}),
}
SERVED = pytest.mark.skipif(
    find_python("vllm", "cpu") is None, reason="vLLM's environment is not installed: `ale engine install vllm --cpu`"
)


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def begun(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy of `model.scratch`; its weights are large, so that mistakes show."""
    folder = tmp_path_factory.mktemp(request.param)
    scratch = ScratchModel.model_validate(
        {"architecture": request.param, "hidden_size": 128, "layers": 2, "vocab_size": 500, "max_length": 256}
    )
    write_scratch_model(scratch, folder, TEXTS * 4, seed=1)
    torch.manual_seed(2)
    weights = load_file(folder / "model.safetensors")
    save_file({name: of + 0.1 * torch.randn_like(of) for name, of in weights.items()}, folder / "model.safetensors")
    return folder


@asynccontextmanager
async def engine_on(folder: Path) -> AsyncIterator[TorchEngine]:
    """Open the engine `torch` on a folder."""
    async with TorchEngine(TorchEngine.Config(max_batch=2, threads=1), DriverContext(seed=1)) as engine:
        await engine.load_model(folder, ChatTokenizer.load(folder))
        yield engine


async def train(name: str, folder: Path, place: Path) -> Path:
    """Make two steps from the policy in a folder and write what `from_pretrained` loads, as a run does."""
    use, settings = TRAINERS[name]
    trainer: TrainerBackend
    if use == "megatron":
        from ale_trainer_megatron import MegatronTrainer

        trainer = MegatronTrainer(MegatronTrainer.Config(device="cpu", threads=1, **settings), DriverContext(seed=1))
    else:
        trainer = TorchTrainer(TorchTrainer.Config(device="cpu", threads=1, **settings), DriverContext(seed=1))
    async with trainer:
        await trainer.load(folder)
        for _ in range(2):
            await trainer.update(pack_trajectories(mixed_group(4)), LIKELIHOOD, lr=1e-3)
        await trainer.save(place / "checkpoint")
    export_model(place / "checkpoint", place / "final", (folder, None))
    return place / "final"


async def test_a_policy_of_scratch_is_read_alike(begun: Path) -> None:
    async with engine_on(begun) as engine:
        await assert_read_alike(begun, engine)


@pytest.mark.parametrize("name", TRAINERS)
async def test_a_trained_policy_is_read_alike(name: str, begun: Path, tmp_path: Path) -> None:
    folder = await train(name, begun, tmp_path)
    changed = load_file(folder / "model.safetensors")
    assert any(not torch.equal(of, changed[key]) for key, of in load_file(begun / "model.safetensors").items())
    async with engine_on(folder) as engine:
        await assert_read_alike(folder, engine)


@pytest.mark.bwrap
def test_a_run_says_that_transformers_reads_its_tokenizer_otherwise(tmp_path: Path) -> None:
    shape = {"architecture": "qwen2", "hidden_size": 32, "layers": 1, "heads": 2, "vocab_size": 400, "max_length": 512}
    write_scratch_model(ScratchModel.model_validate(shape), tmp_path / "model", TEXTS * 4, seed=1)
    file = tmp_path / "run.yaml"
    file.write_text(TINY.format(runs=tmp_path / "runs"))
    less = ("model.scratch=null", f"model.path={tmp_path / 'model'}", "sft.demonstrations.count=4", "sft.steps=1")
    done = ale("run", file, *less, "rl=null", "eval=null", "--out", tmp_path / "run")
    assert summary_of(done)["status"] == "completed"
    assert "AutoTokenizer" not in done.stderr
    train_tokenizer(TEXTS * 4, 300).save(tmp_path / "model")
    done = ale("run", file, *less, "rl=null", "eval=null", "--out", tmp_path / "other")
    assert "AutoTokenizer of transformers does not read the tokenizer in" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("vllm")
@SERVED
@pytest.mark.parametrize("begun", ["qwen2"], indirect=True)
async def test_a_trained_policy_is_read_alike_in_vllm_and_by_its_own_transformers(begun: Path, tmp_path: Path) -> None:
    folder = await train("one process", begun, tmp_path)
    tokenizer = ChatTokenizer.load(folder)
    program = (
        "import json, sys; from transformers import AutoTokenizer; t = AutoTokenizer.from_pretrained(sys.argv[1]); "
        "print(json.dumps([t(x, add_special_tokens=False).input_ids for x in json.loads(sys.argv[2])]))"
    )
    python = find_python("vllm", "cpu")
    assert python is not None
    command = [python, "-c", program, folder, json.dumps(TEXTS)]
    said = await asyncio.to_thread(subprocess.check_output, command)
    assert json.loads(said) == [tokenizer.encode(text) for text in TEXTS]
    settings = ServerSettings(threads=1, max_batch=2, max_context=256, device="cpu")
    async with VllmReplica(settings, DriverContext(run_dir=tmp_path / "run")) as vllm:
        await vllm.load_model(folder, tokenizer)
        await assert_read_alike(folder, vllm)
