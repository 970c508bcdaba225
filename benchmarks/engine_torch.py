"""Compares the engine `torch` with `generate` of transformers: tokens per second on one CPU thread.

The model is a small Qwen2 (hidden 96, 4 layers, 4 heads, 2 key/value heads, vocabulary 640, random weights). Every
request samples `NEW` tokens after a random prompt of `PROMPT`, so contexts are about 300 tokens long; all requests of a
row arrive at once, prompts share nothing, and prefill counts. transformers gets them as one batch without padding: its
best case, because in real runs answers differ in length and its batch waits for the longest. Seconds are CPU seconds of
the process, so that other work on the machine has little effect.

    python benchmarks/engine_torch.py [repeats]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, Qwen2Config, logging

from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import DriverContext
from ale.specs.engine import GenerateRequest, Sampling
from ale_engine_torch import TorchEngine

BATCHES = (1, 16, 64)
PROMPT, NEW, VOCAB = 236, 128, 640


def make_model(folder: Path) -> None:
    """Write the tiny model into `folder`."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    auto: Any = AutoModelForCausalLM
    auto.from_config(config).save_pretrained(folder)


def prompts(batch: int, seed: int) -> torch.Tensor:
    """Random token ids, [batch, PROMPT]."""
    return torch.randint(0, VOCAB, (batch, PROMPT), generator=torch.Generator().manual_seed(seed))


def transformers_rate(folder: Path, batch: int, repeats: int) -> float:
    """Sampled tokens a second of `generate`, the best of `repeats`."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder)  # in evaluation mode
    settings_of: Any = GenerationConfig
    settings = settings_of(do_sample=True, top_k=0, max_new_tokens=NEW, min_new_tokens=NEW, pad_token_id=0)
    best = 0.0
    for repeat in range(repeats):
        ids = prompts(batch, repeat)
        began = time.process_time()
        model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
        best = max(best, batch * NEW / (time.process_time() - began))
    return best


async def engine_rate(folder: Path, batch: int, repeats: int) -> float:
    """Sampled tokens a second of the engine, the best of `repeats`."""
    best = 0.0
    config = TorchEngine.Config(max_batch=64, max_context=1024, device="cpu", threads=1)
    async with TorchEngine(config, DriverContext()) as engine:
        await engine.load_model(folder, byte_tokenizer())
        for repeat in range(repeats):
            rows = prompts(batch, repeat).tolist()
            began = time.process_time()
            done = await asyncio.gather(
                *(
                    engine.generate(GenerateRequest(tuple(row), Sampling(max_tokens=NEW), f"{repeat}.{i}"))
                    for i, row in enumerate(rows)
                )
            )
            best = max(best, sum(len(g.token_ids) for g in done) / (time.process_time() - began))
    return best


def main() -> None:
    """Print the table."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    torch.set_num_threads(1)
    quiet: Any = logging
    quiet.disable_progress_bar()
    quiet.set_verbosity_error()
    print(
        f"{'requests':>8} {'transformers':>13} {'engine torch':>13} {'ratio':>6}   (sampled tokens a CPU second, best "
        f"of {repeats})"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder)
        for batch in BATCHES:
            theirs = transformers_rate(folder, batch, repeats)
            ours = asyncio.run(engine_rate(folder, batch, repeats))
            print(f"{batch:>8} {theirs:>13,.0f} {ours:>13,.0f} {ours / theirs:>6.1f}", flush=True)


if __name__ == "__main__":
    main()
