"""Measures the memory that trainers need for each parameter, beside what docs/trainers.md says.

Two models that differ in the number of their layers make three updates on a few tokens, so that activations are small.
Printed is the difference of their memory by that of their parameters, in bytes: what every process needs whatever the
model (libraries, embeddings) is in neither. At rest (weights and moments), and at the peak of an update (gradients and
the layer that is computed besides). It is unique memory, of all processes, and at the peak of the largest one.

    python benchmarks/trainer_memory.py      # about five minutes on two cores
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from trainers import MODELS, Surrogate, make_batch
from transformers import AutoModelForCausalLM, Qwen2Config

from ale.specs.driver import DriverContext

WAYS: dict[str, tuple[dict[str, Any], float, float]] = {
    "float32": ({}, 12, 16),
    "bfloat16": ({"dtype": "bfloat16"}, 12, 16),
    "float32, ranks: 2": ({"ranks": 2}, 12, 16),
    "bfloat16, lora": ({"dtype": "bfloat16", "lora": {"rank": 8}}, 2, 2),
    "float32, adamw_8bit": ({"optimizer": "adamw_8bit"}, 6, 10),
    "megatron, float32": ({"use": "megatron"}, 16, 16),
    "megatron, bfloat16": ({"use": "megatron", "dtype": "bfloat16"}, 18, 18),
    "megatron, tensor_parallel: 2": ({"use": "megatron", "ranks": 2, "tensor_parallel": 2}, 16, 16),
}
"""Settings, and the bytes a parameter of the page at rest and in an update."""


LAYERS = (4, 44)
VOCABULARY = 4_000


def used_by(process: psutil.Process) -> list[int]:
    """Unique memory of a process and its children, each in bytes."""
    return [p.memory_full_info().uss for p in (process, *process.children(recursive=True)) if p.is_running()]


@contextmanager
def watched(peaks: list[int]) -> Iterator[None]:
    """Append the highest sum and the highest single one."""
    done, highest = threading.Event(), [0, 0]

    def watch() -> None:
        while not done.wait(0.005):
            try:
                now = used_by(psutil.Process())
            except psutil.Error:
                continue
            highest[:] = max(highest[0], sum(now)), max(highest[1], max(now))

    watcher = threading.Thread(target=watch)
    watcher.start()
    yield
    done.set()
    watcher.join()
    peaks.extend(highest)


async def measure(settings: dict[str, Any], folder: Path) -> dict[str, float]:
    """Bytes at rest and at the peak, of all processes and of the largest."""
    from ale_trainer_megatron import MegatronTrainer
    from ale_trainer_torch import TorchTrainer

    cls: Any = MegatronTrainer if settings.pop("use", "torch") == "megatron" else TorchTrainer
    batch = make_batch(0, VOCABULARY, 2)
    config = cls.Config(**{"threads": 1, "micro_batch_tokens": 256, "logit_chunk": 64, **settings})
    async with cls(config, DriverContext()) as trainer:
        await trainer.load(folder)
        peaks: list[int] = []
        for _ in range(2):
            await trainer.update(batch, Surrogate())
        with watched(peaks):
            await trainer.update(batch, Surrogate())
        return {"rest": sum(used_by(psutil.Process())), "peak": peaks[0], "one": peaks[1]}


def write_model(folder: Path, layers: int) -> int:
    """Write a model and return the number of its parameters."""
    shape = MODELS["52 M"] | {"num_hidden_layers": layers, "vocab_size": VOCABULARY}
    wide = {"num_key_value_heads": 2, "intermediate_size": 2 * shape["hidden_size"], "tie_word_embeddings": True}
    model: Any = AutoModelForCausalLM.from_config(Qwen2Config(**shape, **wide))
    model.save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


def run(settings: dict[str, Any], folder: Path) -> dict[str, float] | str:
    """Measure in a process of its own; return what it says if it cannot."""
    command = [sys.executable, __file__, json.dumps(settings), str(folder)]
    # What is freed goes back to the system at once.
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    out = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if out.returncode:
        return out.stderr.strip().splitlines()[-1]
    found: dict[str, float] = json.loads(out.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as place:
        folders = [Path(place) / str(layers) for layers in LAYERS]
        counts = [write_model(folder, layers) for folder, layers in zip(folders, LAYERS, strict=True)]
        more = counts[1] - counts[0]
        sizes = " and ".join(f"{count / 1e6:.1f}" for count in counts)
        print(
            f"{sizes} M parameters; bytes for each of the {more / 1e6:.1f} M more, measured (and by docs/trainers.md)"
        )
        print(f"{'':<30}{'at rest':>14}{'in an update':>16}{'one process':>13}")
        for name, (settings, rest, peak) in WAYS.items():
            found = [run(settings, folder) for folder in folders]
            if isinstance(found[0], str) or isinstance(found[1], str):
                print(f"{name:<30}not measured: {str(found[0])[:90]}", flush=True)
                continue
            by = {key: (found[1][key] - found[0][key]) / more for key in found[0]}
            print(
                f"{name:<30}{by['rest']:>8.1f} ({rest:g}){by['peak']:>11.1f} ({peak:g}){by['one']:>11.1f}", flush=True
            )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(asyncio.run(measure(json.loads(sys.argv[1]), Path(sys.argv[2])))))
    else:
        main()
