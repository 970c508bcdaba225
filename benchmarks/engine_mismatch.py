"""Shows how far each engine's log-probabilities are from the trainer's on the tokens that the engine sampled.

The model is a small Qwen2 with random weights, wide enough that its distributions have peaks (or the folder that is
named). Each of `SESSIONS` sessions has two turns: a random prompt of `PROMPT` tokens and an answer of `NEW`, then
`BETWEEN` tokens of an environment and another answer, which an engine continues from its prefix cache. The trainer
`torch` then computes the log-probabilities of all sampled tokens, as in a run. The columns are the metrics `mismatch_*`
of `docs/metrics.md`: `mean`, `max` and `kl` in nats, percentiles 1 and 99 of the ratio, the share of effective samples,
and the mean by place in the sequence. An engine that is not installed, or fails, gets a line that says so.

    python benchmarks/engine_mismatch.py [MODEL_FOLDER]
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen2Config, logging

from ale.errors import AleError
from ale.registry.drivers import build_driver
from ale.session.tokenizer import byte_tokenizer
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine, Sampling
from ale.specs.trainer import TrainBatch
from ale.trajectory import Chunk, Sequence, Trajectory
from ale_train.batches import Credit, pack
from ale_train.batches.mismatch import compare_logprobs, mismatch_metrics
from ale_trainer_torch import TorchTrainer

ENGINES = ("torch", "vllm", "sglang")
DTYPES = ("float32", "bfloat16")
SESSIONS, PROMPT, NEW, BETWEEN = 16, 64, 128, 32
PLACES = ("0-127", "128-255", "256-511")
COLUMNS = ("mean", "max", "kl", "ratio_p01", "ratio_p99", "effective_samples")


def make_model(folder: Path) -> None:
    """Write the small model into `folder`. Weights of ten times the usual size give 4 nats of entropy, of 8.3."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    auto: Any = AutoModelForCausalLM
    auto.from_config(config).save_pretrained(folder)


async def play_session(engine: InferenceEngine, number: int, vocabulary: int) -> Trajectory:
    """Play the two turns of a session."""
    draw = random.Random(number)
    tokens = [draw.randrange(vocabulary) for _ in range(PROMPT)]
    chunks: list[Chunk] = []
    for call in range(2):
        request = GenerateRequest(tuple(tokens), Sampling(max_tokens=NEW, seed=2 * number + call), str(number), call)
        answer: Generation = await engine.generate(request)
        start, end = len(tokens), len(tokens) + len(answer.token_ids)
        chunks.append(Chunk(call, 0, start, end, answer.logprobs, answer.versions, answer.finish_reason))
        tokens += [*answer.token_ids, *(draw.randrange(vocabulary) for _ in range(BETWEEN))]
    name, played = str(number), Sequence(tuple(tokens), ())
    return Trajectory(name, name, "train", "rl", 1, name, number, engine.version, (played,), tuple(chunks))


async def sample(use: str, dtype: str, folder: Path, vocabulary: int) -> tuple[TrainBatch, int]:
    """Return what the engine sampled, packed for the trainer, and the version that sampled it."""
    settings = {"dtype": dtype, "max_batch": SESSIONS, "max_context": 512, "threads": 2}
    engine: Any = build_driver("engine", PluginChoice(use=use, settings=settings), DriverContext())
    async with engine:
        await engine.load_model(folder, byte_tokenizer())
        done = await asyncio.gather(*(play_session(engine, number, vocabulary) for number in range(SESSIONS)))
        batch = pack(done, lambda *_: Credit(1.0, positive=True))
        assert batch is not None, "every session has sampled tokens"
        return batch, engine.version


async def score(batch: TrainBatch, version: int, dtype: str, folder: Path) -> dict[str, float]:
    """Return the metrics of the batch beside a trainer of this dtype."""
    async with TorchTrainer(TorchTrainer.Config(dtype=dtype, threads=2), DriverContext()) as trainer:
        await trainer.load(folder)
        return mismatch_metrics([compare_logprobs(batch, await trainer.logprobs(batch), version)])


def row_of(engine: str, dtype: str, trainer: str, found: dict[str, float]) -> str:
    """Return a line of the table."""
    numbers = [found[f"mismatch_{name}"] for name in COLUMNS]
    numbers += [found.get(f"mismatch_place/{name}", float("nan")) for name in PLACES]
    return f"{engine:<8}{dtype:<10}{trainer:<10}" + "".join(f"{number:>11.3g}" for number in numbers)


async def main() -> None:
    """Print the table."""
    quiet: Any = logging
    quiet.disable_progress_bar()
    quiet.set_verbosity_error()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(name)
        if len(sys.argv) == 1:
            make_model(folder)
        vocabulary = int(json.loads((folder / "config.json").read_text())["vocab_size"])
        heads = ("mean", "max", "kl", "p01", "p99", "effective", *PLACES)
        print(f"{'engine':<8}{'dtype':<10}{'trainer':<10}" + "".join(f"{head:>11}" for head in heads))
        for use in ENGINES:
            for dtype in DTYPES:
                try:
                    batch, version = await sample(use, dtype, folder, vocabulary)
                except AleError as error:
                    lines = str(error).splitlines()  # of a server: its log, whose last line is the cause
                    print(f"{use:<8}{dtype:<10}no numbers: {' [...] '.join(dict.fromkeys(lines[:1] + lines[-1:]))}")
                    continue
                for trainer in DTYPES:
                    print(row_of(use, dtype, trainer, await score(batch, version, trainer, folder)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
