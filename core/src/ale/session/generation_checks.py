"""Checks an engine's answer before it is recorded: a wrong answer is an engine fault and is never trained on."""

from __future__ import annotations

import math
from typing import get_args

from ale.errors import EngineError
from ale.specs.engine import GenerateRequest, Generation
from ale.trajectory import FinishReason

TOLERANCE = 1e-3
"""How far above 0 rounding may put a log-probability."""


def check_generation(generation: object, request: GenerateRequest, id_limit: int) -> Generation:
    """Return the generation unchanged. Raises `EngineError`, with a sentence that says what is wrong with it."""
    if not isinstance(generation, Generation):
        raise EngineError(f"The engine answered with {type(generation).__name__}, not with a Generation.")
    try:
        wrong = describe_fault(generation, request.sampling.max_tokens, id_limit)
    except (TypeError, ValueError, OverflowError) as error:
        raise EngineError(f"The engine's answer holds what is no number: {error}.") from error
    if wrong is not None:
        raise EngineError(f"The engine's answer cannot be used: {wrong}.")
    return generation


def describe_fault(generation: Generation, most: int, id_limit: int) -> str | None:
    """Return what is wrong with a generation of at most `most` tokens; None if nothing is wrong."""
    ids, logprobs, versions = generation.token_ids, generation.logprobs, generation.versions
    if not all(isinstance(part, tuple) for part in (ids, logprobs, versions)):
        return "its tokens, log-probabilities and versions must be tuples"
    if len(ids) > most:
        return f"it has {len(ids)} tokens, where {most} were allowed"
    if len(logprobs) != len(ids) or len(versions) != len(ids):
        return f"it has {len(ids)} tokens, {len(logprobs)} log-probabilities and {len(versions)} versions"
    if generation.finish_reason not in get_args(FinishReason):
        return f"its finish reason is {generation.finish_reason!r}"
    if not ids:
        return None
    if {type(token) for token in ids} | {type(version) for version in versions} != {int}:
        return "its tokens and versions must be whole numbers"
    if min(ids) < 0 or max(ids) >= id_limit:
        return f"it has the token {min(ids) if min(ids) < 0 else max(ids)}, and the vocabulary {id_limit} tokens"
    if not math.isfinite(sum(logprobs)) or max(logprobs) > TOLERANCE:
        return "its log-probabilities must be finite, and at most 0"
    return None
