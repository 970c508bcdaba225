# mypy: disable-error-code="import-not-found"
"""Lets vLLM serve one model after the other, with ALE's worker and without HTTP; vLLM's Python runs it.

Its argument is WORKER_FOLDER. `ale_testing.forked_cases` gives it cases: `folders`, of which the first is started with
and the others are updates, `prompts`, `max_context` and `max_tokens`. The answer has for each folder the tokens, their
log-probabilities and the fingerprint."""

from __future__ import annotations

import json
import sys
from typing import Any

sys.path.insert(0, sys.argv[1])
import ale_vllm_worker  # noqa: F401 - the kernels that it changes are those of each model
from vllm import LLM, SamplingParams


def serve(case: dict[str, Any]) -> list[Any]:
    """Return what is sampled of each prompt, and the fingerprint, with each folder's weights."""
    engine = LLM(
        model=case["folders"][0], dtype="float32", max_model_len=case["max_context"], max_num_seqs=8,
        skip_tokenizer_init=True, enforce_eager=True, enable_prefix_caching=False, block_size=32,
        kv_cache_memory_bytes=2**28, generation_config="vllm", worker_extension_cls="ale_vllm_worker.AleWorker",
        distributed_executor_backend="uni",
    )  # fmt: skip
    sampling = SamplingParams(
        temperature=1.0, seed=1, max_tokens=case["max_tokens"], logprobs=0, ignore_eos=True, detokenize=False
    )
    answers = []
    for number, folder in enumerate(case["folders"]):
        if number:
            engine.collective_rpc("ale_load_folder", args=(folder,))
        outputs = engine.generate(
            [{"prompt_token_ids": prompt} for prompt in case["prompts"]], sampling, use_tqdm=False
        )
        sampled = [output.outputs[0] for output in outputs]
        tokens = [list(one.token_ids) for one in sampled]
        logprobs = [
            [entry[token].logprob for entry, token in zip(one.logprobs, one.token_ids, strict=True)] for one in sampled
        ]
        answers.append([tokens, logprobs, json.loads(engine.collective_rpc("ale_fingerprint")[0])])
    return answers
