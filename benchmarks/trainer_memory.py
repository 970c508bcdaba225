"""Measures the memory that the trainer `torch` needs for each parameter, beside what docs/trainers.md says.

A model of 52 M parameters (tied embeddings) makes three updates on a few tokens, so that activations are small. Printed
are bytes a parameter over what the processes held before the model was loaded: at rest (weights and moments), and at
the peak of an update (gradients and the layer that is computed besides). It is unique memory, of all processes, and at
the peak of the largest one.

    python benchmarks/trainer_memory.py      # about three minutes on two cores
"""

from __future__ import annotations

import asyncio
import json
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

from ale.specs.driver import DriverContext

WAYS: dict[str, tuple[dict[str, Any], float, float]] = {
    "float32": ({}, 12, 16),
    "bfloat16": ({"dtype": "bfloat16"}, 12, 16),
    "float32, ranks: 2": ({"ranks": 2}, 12, 16),
    "bfloat16, lora": ({"dtype": "bfloat16", "lora": {"rank": 8}}, 2, 2),
    "float32, adamw_8bit": ({"optimizer": "adamw_8bit"}, 6, 10),
}
"""Settings, and the bytes a parameter of the page at rest and in an update."""


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
    """Bytes at rest and at the peak over those before the model was loaded."""
    from ale_trainer_torch import TorchTrainer

    batch = make_batch(0, 32_000, 2)
    config = TorchTrainer.Config(**{"threads": 1, "micro_batch_tokens": 256, "logit_chunk": 64, **settings})
    async with TorchTrainer(config, DriverContext()) as trainer:
        before = used_by(psutil.Process())
        await trainer.load(folder)
        peaks: list[int] = []
        for _ in range(2):
            await trainer.update(batch, Surrogate())
        with watched(peaks):
            await trainer.update(batch, Surrogate())
        rest = used_by(psutil.Process())
        return {"rest": sum(rest) - sum(before), "peak": peaks[0] - sum(before), "one": peaks[1] - max(before)}


def main() -> None:
    """Print the table."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    shape = MODELS["52 M"]
    with tempfile.TemporaryDirectory() as place:
        wide = {"num_key_value_heads": 2, "intermediate_size": 2 * shape["hidden_size"], "tie_word_embeddings": True}
        model: Any = AutoModelForCausalLM.from_config(Qwen2Config(**shape, **wide))
        model.save_pretrained(place)
        count = sum(p.numel() for p in model.parameters())
        del model
        print(f"{count / 1e6:.1f} M parameters; bytes a parameter, measured (and by docs/trainers.md)")
        print(f"{'':<22}{'at rest':>14}{'in an update':>16}{'one process':>13}")
        for name, (settings, rest, peak) in WAYS.items():
            command = [sys.executable, __file__, json.dumps(settings), place]
            out = subprocess.run(command, capture_output=True, text=True, check=False)
            if out.returncode:
                print(f"{name:<22}not measured: {out.stderr.strip().splitlines()[-1][:90]}", flush=True)
                continue
            found = {key: value / count for key, value in json.loads(out.stdout.splitlines()[-1]).items()}
            print(
                f"{name:<22}{found['rest']:>8.1f} ({rest:g}){found['peak']:>11.1f} ({peak:g}){found['one']:>11.1f}",
                flush=True,
            )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(asyncio.run(measure(json.loads(sys.argv[1]), Path(sys.argv[2])))))
    else:
        main()
