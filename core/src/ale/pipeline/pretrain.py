"""Continual pre-training (paper, 3.2.1): the policy learns to predict plain text, stage by stage, with the supervised loss.

A sequence of text is a trajectory of one turn that begins with its second token: Eq. 1 then counts every token that something
predicts, and nothing of the trainer, the packing or the loss is other than in the warm start.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from ale.errors import ConfigError
from ale.pipeline.texts import Packed, Tokens, packed, packed_once, text_files
from ale.pipeline.workbench import Workbench
from ale.run_config import ModelConfig
from ale.specs.algorithm import Algorithm
from ale.specs.trainer import TrainBatch
from ale.supervised_config import CPTConfig, CPTStage
from ale.task import TRAIN
from ale.trajectory import Chunk, Sequence, Trajectory

CPT_STAGE = "cpt"
T = TypeVar("T")


def check_texts(config: CPTConfig, model: ModelConfig) -> None:
    """Refuse text that is not there, and sequences that the model cannot take. Raises `ConfigError`."""
    longest = _context_of(model)
    for i, stage in enumerate(config.stages):
        text_files(stage.data, f"cpt.stages.{i}.data")
        if longest is not None and stage.sequence_tokens > longest:
            raise ConfigError(
                f"cpt.stages.{i}.sequence_tokens: {stage.sequence_tokens} tokens are more than the model's context of {longest}."
            )
    text_files(config.heldout, "cpt.heldout")


async def pretrain(bench: Workbench, config: CPTConfig) -> None:
    """Run the stages, then bring the weights to the engine. Metrics of stage `cpt`, steps from 1; 0 is before the first."""
    step = 0
    with bench.timed("pretraining"):
        if config.heldout:
            bench.finish_step(CPT_STAGE, 0, await _heldout(bench, config, "before"))
        for number, stage in enumerate(config.stages):
            bench.progress.stage(f"pre-training stage {number + 1}/{len(config.stages)}", stage.steps)
            files = text_files(stage.data, f"cpt.stages.{number}.data")
            seed = bench.config.seed + number
            with closing(packed(files, bench.endpoint.tokenizer, stage.sequence_tokens, seed)) as texts:
                for at in range(stage.steps):
                    step += 1
                    metrics = await _step(bench, stage, at, texts) | {"stage": number + 1.0}
                    if at == stage.steps - 1 and config.heldout:
                        metrics |= await _heldout(bench, config, f"after stage {number + 1}")
                    bench.finish_step(CPT_STAGE, step, metrics)
                    bench.progress.advance()
        await bench.publish()


async def _step(bench: Workbench, stage: CPTStage, at: int, texts: Iterator[Packed]) -> dict[str, float]:
    """One optimizer step on the next sequences."""
    algorithm = _algorithm(bench)
    began = time.monotonic()
    taken = await in_thread(lambda: list(itertools.islice(texts, stage.batch_tokens // stage.sequence_tokens)))
    batch = text_batch(algorithm, [p.token_ids for p in taken])
    decay = stage.weight_decay_at(at)
    # Trainers made before there was such an argument do without.
    asked: dict[str, Any] = {} if decay is None else {"weight_decay": decay}
    totals = await bench.backend.update(batch, algorithm.loss, lr=stage.lr, **asked)
    metrics = algorithm.metrics(totals) | asked | {"epoch": float(max(p.epoch for p in taken))}
    tokens_per_s = len(batch.token_ids) / max(1e-9, time.monotonic() - began)
    bench.progress.numbers(loss=totals["loss"], tokens_per_s=tokens_per_s)
    return metrics | {"tokens_per_s": tokens_per_s}


async def _heldout(bench: Workbench, config: CPTConfig, when: str) -> dict[str, float]:
    """`heldout_loss` (nats a token) and `heldout_perplexity`, in sequences as long as the first stage's: then they compare."""
    first, total, count = config.stages[0], 0.0, 0
    files = text_files(config.heldout, "cpt.heldout")
    with closing(packed_once(files, bench.endpoint.tokenizer, first.sequence_tokens)) as texts:
        while taken := await in_thread(
            lambda: list(itertools.islice(texts, first.batch_tokens // first.sequence_tokens))
        ):
            batch = text_batch(_algorithm(bench), taken)
            trained = batch.chunk_ids >= 0
            total -= float((await bench.backend.logprobs(batch))[trained].sum(dtype=np.float64))
            count += int(trained.sum())
    if not count:
        raise ConfigError(f"cpt.heldout: there is no text in {', '.join(map(str, files))}.")
    perplexity = math.exp(min(total / count, 700.0))
    bench.progress.note(f"held-out perplexity {when}: {perplexity:.2f} ({count} tokens)")
    return {"heldout_loss": total / count, "heldout_perplexity": perplexity}


def text_batch(algorithm: Algorithm, texts: list[Tokens]) -> TrainBatch:
    """Sequences of text, of two tokens at least, as a batch in which every token but the first of each carries loss."""
    batch = algorithm.batch([text_trajectory(i, token_ids) for i, token_ids in enumerate(texts)])
    if batch is None or int((batch.chunk_ids >= 0).sum()) != sum(len(t) - 1 for t in texts):
        raise ConfigError("cpt.algorithm: it takes the loss off text, every token of which is to be learnt; use sft.")
    return batch


def text_trajectory(number: int, token_ids: Tokens) -> Trajectory:
    """One turn from the second token to the last, in a context without messages."""
    ids = tuple(token_ids.tolist())
    chunk = Chunk(0, 0, 1, len(ids), (), (), "stop", sampled=False)
    return Trajectory(
        id=f"text.{number}", task_id="text", split=TRAIN, stage=CPT_STAGE, step=0, group=f"text.{number}", seed=0,
        policy_version=0, sequences=(Sequence(ids, ()),), chunks=(chunk,),
    )  # fmt: skip


async def in_thread(work: Callable[[], T]) -> T:
    """Run it in a thread; who is cancelled meanwhile waits until it is done, since what it reads from is closed then."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _algorithm(bench: Workbench) -> Algorithm:
    assert bench.cpt is not None, "started with the workbench"
    return bench.cpt


def _context_of(model: ModelConfig) -> int | None:
    """The longest context of the model that a run starts from, in tokens, where it tells."""
    if model.scratch is not None:
        return model.scratch.max_length
    try:
        told = json.loads(((model.path or Path()) / "config.json").read_text())
    except (OSError, ValueError):
        return None  # who loads it will say so
    longest = cast(object, told.get("max_position_embeddings")) if isinstance(told, dict) else None
    return longest if isinstance(longest, int) else None
