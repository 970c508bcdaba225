"""An interrupted generation goes on as a request for the rest: its prompt is the old one with what has been sampled."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b

from ale.specs.engine import GenerateRequest, Generation

NOTHING = Generation((), (), (), "length")
"""A generation before its first token."""


def request_rest(request: GenerateRequest, done: Generation) -> GenerateRequest:
    """Return the request for what is left of a request when `done` has been sampled.

    It has a seed of its own, which follows from the old one and the number of tokens: with the old seed, an engine
    would draw the numbers of the first tokens again."""
    if not done.token_ids:
        return request
    sampling, length = request.sampling, len(done.token_ids)
    seed = None if sampling.seed is None else derive_seed(sampling.seed, length)
    rest = replace(sampling, max_tokens=sampling.max_tokens - length, seed=seed)
    return replace(request, token_ids=request.token_ids + done.token_ids, sampling=rest)


def join_parts(done: Generation, further: Generation) -> Generation:
    """Return two parts of a generation as one."""
    return Generation(
        done.token_ids + further.token_ids,
        done.logprobs + further.logprobs,
        done.versions + further.versions,
        further.finish_reason,
    )


def finish_if_complete(request: GenerateRequest, done: Generation, max_context: int) -> Generation | None:
    """Return the generation if nothing is left to sample for the request; None otherwise."""
    if not done.token_ids:
        return None
    if done.token_ids[-1] in request.sampling.stop_token_ids:
        return replace(done, finish_reason="stop")
    length = len(done.token_ids)
    full = length >= request.sampling.max_tokens or len(request.token_ids) + length >= max_context
    return replace(done, finish_reason="length") if full else None


def derive_seed(seed: int, length: int) -> int:
    """Return the seed of a continuation after `length` tokens: 31 bits, which every engine takes."""
    return int.from_bytes(blake2b(f"{seed} {length}".encode(), digest_size=4).digest(), "big") >> 1
