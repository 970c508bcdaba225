"""One engine on one GPU beside the trainer `torch`: what `gpu_check.sh` runs.

The model has the shape of Qwen2.5-0.5B and random weights, in bfloat16. The trainer publishes by each transport that
both sides have; the engine proves each update (its fingerprint), and once more after sleep and wake. NCCL refuses two
processes on one GPU, so `nccl` needs a second one, on which the server runs then.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import torch
from gpu_parts import ON_GPU, write_model

from ale.registry.drivers import load_driver_class
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import DriverContext
from ale.specs.engine import GenerateRequest, InferenceEngine, Sampling
from ale.specs.trainer import TrainerBackend

PROMPT, NEW = 512, 256
AGENTS = (1, 32, 256)


def used_memory(gpu: int) -> str:
    """The memory of one GPU in use, by all processes."""
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()[gpu].strip()


async def check(server: str, python: Path, folder: Path, gpu: int) -> None:
    """Print a figure a line of a server on one GPU; the trainer is on the first. Raises what either of them raises."""
    engines, trainers = load_driver_class("engine", server), load_driver_class("trainer", "torch")
    settings: dict[str, Any] = {
        "python": python,
        "device": "cuda",
        "max_context": 2048,
        "max_batch": max(AGENTS),
        "gpu_memory": 0.4,
    }
    if gpu:
        settings["environment"] = {"CUDA_VISIBLE_DEVICES": str(gpu)}
    began = time.perf_counter()
    async with (
        engines(engines.Config.model_validate(settings), DriverContext()) as driver,
        trainers(trainers.Config.model_validate({"device": "cuda", "dtype": "bfloat16"}), DriverContext()) as learner,
    ):
        engine, trainer = cast(InferenceEngine, driver), cast(TrainerBackend, learner)
        await engine.load_model(folder, byte_tokenizer())
        print(f"start {time.perf_counter() - began:.1f} s, GPU memory {used_memory(gpu)}", flush=True)
        generator = torch.Generator().manual_seed(1)
        for agents in AGENTS:
            prompts = torch.randint(0, 150000, (agents, PROMPT), generator=generator).tolist()
            began = time.perf_counter()
            done = await asyncio.gather(
                *(
                    engine.generate(GenerateRequest(tuple(p), Sampling(max_tokens=NEW), f"{i}"))
                    for i, p in enumerate(prompts)
                )
            )
            sampled = sum(len(generation.token_ids) for generation in done)
            print(f"{agents:>4} requests: {sampled / (time.perf_counter() - began):,.0f} sampled tokens/s", flush=True)
        await trainer.load(folder)
        for transport in trainer.transports:
            if transport not in engine.transports:
                continue
            for _ in range(3):
                began = time.perf_counter()
                policy = await trainer.publish(transport, folder.parent / f"published-{transport}")
                published = time.perf_counter()
                await engine.load_weights(policy)
                print(
                    f"{transport}: published {(published - began) * 1e3:.0f} ms, loaded and proved "
                    f"{(time.perf_counter() - published) * 1e3:.0f} ms, version {engine.version}",
                    flush=True,
                )
        if server == "sglang":
            print("sleep and wake: left out, SGLang's plugin frees nothing")
            return
        for name, act in (("sleep", engine.sleep), ("wake", engine.wake)):
            began = time.perf_counter()
            await act()
            print(f"{name} {time.perf_counter() - began:.2f} s, GPU memory {used_memory(gpu)}", flush=True)
        await engine.load_weights(await trainer.publish("folder", folder.parent / "published-again"))
        again = await engine.generate(GenerateRequest((1, 2, 3), Sampling(max_tokens=8)))
        print(f"after wake: {len(again.token_ids)} tokens of version {again.versions[-1]}")


def main() -> None:
    """Run the check in a temporary folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", choices=["vllm", "sglang"])
    parser.add_argument("--python", type=Path, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "model"
        write_model(folder, ON_GPU.model)
        asyncio.run(check(given.server, given.python, folder, gpu=0))
        if given.server == "vllm" and torch.cuda.device_count() > 1:
            print("the server on the second GPU:")
            asyncio.run(check(given.server, given.python, folder, gpu=1))
        elif given.server == "vllm":
            print("nccl: left out, it needs a second GPU")


if __name__ == "__main__":
    main()
