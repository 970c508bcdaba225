"""In continual pre-training (paper, 3.2.1) the policy learns to predict plain text, stage by stage, with the supervised
loss.

A sequence of text becomes a trajectory with one turn that begins at the second token. So Eq. 1 counts every token that
is predicted from another one, and trainer, packing and loss are the same as in the warm start."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ale.errors import ConfigError
from ale.specs.algorithm import Algorithm
from ale.specs.trainer import TrainBatch
from ale.task import TRAIN
from ale.trajectory import Chunk, Sequence, Trajectory
from ale_train.checkpoints.stage_checkpoints import StageCheckpoints
from ale_train.config.run import ModelConfig
from ale_train.config.supervised import CPTConfig, CPTStage
from ale_train.models.policy_checks import model_context
from ale_train.supervised.text_sequences import TextSequence, Tokens, sequences_once, stream_sequences, text_files
from ale_train.workbench.publishing import publish
from ale_train.workbench.workbench import Workbench

CPT_STAGE = "cpt"
T = TypeVar("T")


def check_texts(config: CPTConfig, model: ModelConfig) -> None:
    """Refuse text files that do not exist, and sequences too long for the model. Raises `ConfigError`."""
    longest = model.scratch.max_length if model.scratch is not None else model_context(model.path or Path())
    for i, stage in enumerate(config.stages):
        text_files(stage.data, f"cpt.stages.{i}.data")
        if longest is not None and stage.sequence_tokens > longest:
            raise ConfigError(
                f"cpt.stages.{i}.sequence_tokens: {stage.sequence_tokens} tokens are more than the model's context of "
                f"{longest}."
            )
    text_files(config.heldout, "cpt.heldout")


async def pretrain(bench: Workbench, config: CPTConfig) -> None:
    """Run the stages, then publish the weights to the engine. Metrics have the stage `cpt`, and their steps count from
    1; step 0 is the policy before the first stage."""
    first = 0
    checkpoints = StageCheckpoints(bench, CPT_STAGE, config.checkpoint_every, first=1)
    done = await checkpoints.resume()
    with bench.stopwatch("pretraining"):
        if config.heldout and not done:
            bench.finish_step(CPT_STAGE, 0, await _measure_heldout(bench, config, "before"))
        for number, stage in enumerate(config.stages):
            bench.progress.stage(f"pre-training stage {number + 1}/{len(config.stages)}", stage.steps)
            files = text_files(stage.data, f"cpt.stages.{number}.data")
            seed = bench.config.seed + number
            with closing(stream_sequences(files, bench.sessions.tokenizer, stage.sequence_tokens, seed)) as texts:
                skip = min(stage.steps, max(0, done - first))
                for _ in range(skip):
                    await _take(texts, stage.sequences)
                    bench.progress.advance()
                for at in range(skip, stage.steps):
                    await checkpoints.step(_step(bench, config, number, step=first + at + 1, at=at, texts=texts))
                    bench.progress.advance()
            first += stage.steps
        await checkpoints.last(publish(bench))


async def _step(
    bench: Workbench, config: CPTConfig, number: int, step: int, at: int, texts: Iterator[TextSequence]
) -> None:
    """Make a step and store its metrics; `at` is its place in the stage."""
    stage = config.stages[number]
    metrics = await _train_step(bench, stage, at, texts) | {"stage": number + 1.0}
    if at == stage.steps - 1 and config.heldout:
        metrics |= await _measure_heldout(bench, config, f"after stage {number + 1}")
    bench.finish_step(CPT_STAGE, step, metrics)


async def _take(texts: Iterator[T], count: int) -> list[T]:
    return await run_in_thread(lambda: list(itertools.islice(texts, count)))


async def _train_step(bench: Workbench, stage: CPTStage, at: int, texts: Iterator[TextSequence]) -> dict[str, float]:
    """Make one optimizer step on the next sequences."""
    algorithm = _algorithm(bench)
    began = time.monotonic()
    taken = await _take(texts, stage.sequences)
    batch = text_batch(algorithm, [p.token_ids for p in taken])
    decay = stage.weight_decay_at(at)
    # A trainer that was written before this argument existed is called without it.
    asked: dict[str, Any] = {} if decay is None else {"weight_decay": decay}
    totals = await bench.backend.update(batch, algorithm.loss, lr=stage.lr, **asked)
    metrics = {**algorithm.loss.metrics(totals), **batch.metrics, **asked, "epoch": float(max(p.epoch for p in taken))}
    tokens_per_s = len(batch.token_ids) / max(1e-9, time.monotonic() - began)
    bench.progress.numbers(loss=totals["loss"], tokens_per_s=tokens_per_s)
    return metrics | {"tokens_per_s": tokens_per_s}


async def _measure_heldout(bench: Workbench, config: CPTConfig, when: str) -> dict[str, float]:
    """Measure `heldout_loss` (nats per token) and `heldout_perplexity`. Sequences are always as long as in the first
    stage, so that the results can be compared."""
    first, total, count = config.stages[0], 0.0, 0
    files = text_files(config.heldout, "cpt.heldout")
    with closing(sequences_once(files, bench.sessions.tokenizer, first.sequence_tokens)) as texts:
        while taken := await _take(texts, first.sequences):
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
    """Make a batch of text sequences of two or more tokens; every token except a sequence's first carries loss."""
    batch = algorithm.batch([text_trajectory(i, token_ids) for i, token_ids in enumerate(texts)])
    if batch is None or int((batch.chunk_ids >= 0).sum()) != sum(len(t) - 1 for t in texts):
        raise ConfigError("cpt.algorithm: it takes the loss off text, every token of which is to be learnt; use sft.")
    return batch


def text_trajectory(number: int, token_ids: Tokens) -> Trajectory:
    """Make a trajectory with one turn from the second token to the last, in a context without messages."""
    ids = tuple(token_ids.tolist())
    chunk = Chunk(
        index=0, sequence=0, start=1, end=len(ids), logprobs=(), versions=(), finish_reason="stop", sampled=False
    )
    return Trajectory(
        id=f"text.{number}",
        task_id="text",
        split=TRAIN,
        stage=CPT_STAGE,
        step=0,
        group=f"text.{number}",
        seed=0,
        policy_version=0,
        sequences=(Sequence(ids, ()),),
        chunks=(chunk,),
    )


async def run_in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread. A caller that is cancelled still waits until `work` ends, because the caller then closes
    the files that `work` reads."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _algorithm(bench: Workbench) -> Algorithm:
    return bench.stage_algorithms["cpt.algorithm"]
