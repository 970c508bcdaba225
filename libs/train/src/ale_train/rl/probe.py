"""Proves that engine and trainer have the same policy, before a run trains on what the engine samples.

The engine continues a short prompt and one that fills the context, so that whatever a model computes otherwise in long
contexts (rotary positions, sliding windows) is seen. The trainer computes the log-probabilities of the same tokens in
one batch. If they differ by more than arithmetic does, weights, templates of weights or settings do, and the run stops.
A pool gets the two prompts once for each of its replicas, and spreads them by their load.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from ale.errors import TrainerError
from ale.specs.engine import GenerateRequest, Generation, Sampling
from ale.specs.trainer import ChunkTable, TrainBatch
from ale_train.batches.mismatch import compare_logprobs
from ale_train.config.rl import RLConfig
from ale_train.models.policy_checks import read_config
from ale_train.rl.device_sharing import Elastic, TrainerDevices
from ale_train.workbench.workbench import Workbench

SHORT, NEW = 16, 16
"""Tokens of the short prompt, and sampled ones after each prompt."""
FLOAT32, NARROW, QUANTIZED = 1e-4, 0.02, 0.1
"""The largest mean difference (nats) by the narrowest type in engine and trainer."""


async def probe(bench: Workbench, config: RLConfig, devices: TrainerDevices) -> None:
    """Compare the log-probabilities of engine and trainer. Raises `TrainerError` if their mean difference is above the
    limit."""
    version, requests = bench.engine.version, _requests(bench)
    done = await asyncio.gather(*map(bench.engine.generate, requests))
    batch = pack_probe(requests, done, version)
    if not batch.engine_logprobs.any():
        bench.progress.note(
            "The engine gives no log-probabilities, so that nothing proves that it samples from the trainer's policy."
        )
        return
    async with devices.held():
        theirs = await bench.backend.logprobs(batch)
    found = np.abs(compare_logprobs(batch, theirs, version).nats)
    mean, limit = float(found.mean()), config.probe_limit or default_limit(bench)
    bench.store.add_event("probe", version=version, mean=mean, largest=float(found.max()), limit=limit)
    if not mean <= limit:  # also if it is no number
        ends = np.cumsum([len(generation.token_ids) for generation in done])[:-1]
        parts = zip(requests, np.split(found, ends), strict=True)
        lengths = "; ".join(f"{len(request.token_ids)} tokens: {part.mean():.2g}" for request, part in parts)
        raise TrainerError(
            f"Engine and trainer do not compute the same: the log-probabilities of version {version} differ by "
            f"{mean:.2g} nats on average, and at most {limit:g} is expected (by the length of the prompt, {lengths}). "
            "They have other weights, or one of them computes this model otherwise than transformers does, so the run "
            "would train on another policy than it samples from. If the difference is meant, such as an engine with "
            "fewer bits, set rl.probe_limit above it."
        )


def default_limit(bench: Workbench) -> float:
    """Return the largest mean difference that arithmetic explains, by the types in engine and trainer."""
    parts = [part.config for part in bench.required.parts if part.kind in ("engine", "trainer")]
    if any(getattr(part, "quantization", None) for part in parts):
        return QUANTIZED
    types = {str(getattr(part, "dtype", "float32")) for part in parts}
    if "auto" in types and bench.policy_folder is not None:
        saved = read_config(bench.policy_folder)
        types.add(str(saved.get("dtype") or saved.get("torch_dtype")))
    return NARROW if types & {"bfloat16", "float16"} else FLOAT32


def _requests(bench: Workbench) -> list[GenerateRequest]:
    """Return the prompts: random tokens of ordinary text."""
    engine, rng = bench.engine, np.random.default_rng(bench.config.seed)
    ordinary = bench.sessions.tokenizer.ordinary_token_ids
    room = min(bench.config.rollout.max_context, engine.max_context) - NEW
    lengths = dict.fromkeys((max(1, min(SHORT, room)), max(1, room)))
    copies = len(engine.replica_statuses()) if isinstance(engine, Elastic) else 1
    return [
        GenerateRequest(
            tuple(int(token) for token in rng.choice(ordinary, length)),
            Sampling(max_tokens=NEW, seed=bench.config.seed),
            session=f"probe-{copy}-{length}",
        )
        for copy in range(copies)
        for length in lengths
    ]


def pack_probe(requests: Sequence[GenerateRequest], done: Sequence[Generation], version: int) -> TrainBatch:
    """Pack prompts and continuations, with loss on what was sampled; all of it should be of this version."""
    pairs = [(request.token_ids, generation) for request, generation in zip(requests, done, strict=True)]
    lengths, rows = np.array([len(prompt) + len(new.token_ids) for prompt, new in pairs]), np.arange(len(pairs))
    sampled = np.concatenate([[False] * len(prompt) + [True] * len(new.token_ids) for prompt, new in pairs])
    logprobs = np.zeros(len(sampled), np.float32)
    logprobs[sampled] = np.concatenate([new.logprobs for _, new in pairs])
    ones = np.ones(len(rows), dtype=np.float32)
    return TrainBatch(
        token_ids=np.concatenate([[*prompt, *new.token_ids] for prompt, new in pairs]).astype(np.int64),
        lengths=lengths,
        trajectory=rows,
        chunk_ids=np.where(sampled, np.repeat(rows, lengths), -1),
        engine_logprobs=logprobs,
        chunks=ChunkTable(rows, 0 * rows, 0 * rows + 1, ones, ones > 0),
        normalizer=1.0,
        versions=np.where(sampled, version, -1),
    )
