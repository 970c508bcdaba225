"""Requests for engines, and what every generation must be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ale.session.tokenizer import ChatTokenizer
from ale.specs.engine import GenerateRequest, Generation, Sampling
from ale_testing import hugging_face
from ale_testing.shared_engine import SharedEngine
from ale_testing.tiny_model import TEXTS

LONG = 150
"""Tokens of a generation during which something is done to the engine."""


def ask(
    tokenizer: ChatTokenizer, text: str = "ls -la", call: int = 0, session: str = "kit", **sampling: Any
) -> GenerateRequest:
    """A request; nothing stops it but `max_tokens`, unless it says otherwise."""
    wish: dict[str, Any] = {"temperature": 1.0, "max_tokens": 12, "seed": 7, **sampling}
    return GenerateRequest(tuple(tokenizer.encode(text)), Sampling(**wish), session=session, call=call)


def long_prompt(tokenizer: ChatTokenizer, tokens: int) -> tuple[int, ...]:
    """The ids of a prompt of so many tokens."""
    ids = tokenizer.encode(" ".join(TEXTS))
    return tuple((ids * (1 + tokens // len(ids)))[:tokens])


def check(generation: Generation, request: GenerateRequest, tokenizer: ChatTokenizer, *, real: bool) -> None:
    """What every generation must be. An engine without a model may end its answers by itself."""
    vocabulary = tokenizer.vocab_size
    own_stops = () if real else tokenizer.stop_token_ids
    n = len(generation.token_ids)
    assert n == len(generation.logprobs) == len(generation.versions), (
        f"one log-probability and one version a token: {n} tokens, {len(generation.logprobs)} log-probabilities, "
        f"{len(generation.versions)} versions"
    )
    assert 0 < n <= request.sampling.max_tokens, f"1 to max_tokens={request.sampling.max_tokens} tokens, not {n}"
    assert all(isinstance(t, int) and 0 <= t < vocabulary for t in generation.token_ids), "token ids of the vocabulary"
    assert all(math.isfinite(p) and p <= 1e-5 for p in generation.logprobs), (
        "log-probabilities are finite and at most 0"
    )
    assert all(isinstance(v, int) for v in generation.versions), "versions are whole numbers"
    stops = {*request.sampling.stop_token_ids, *own_stops}
    if generation.finish_reason == "stop":
        assert generation.token_ids[-1] in stops, "a generation that stopped ends with its stop token"
        assert not set(generation.token_ids[:-1]) & stops, "it must end at the first stop token"
    else:
        assert generation.finish_reason == "length", (
            f"finish_reason must be stop or length, not {generation.finish_reason}"
        )
        assert n == request.sampling.max_tokens, "a generation cut by length has max_tokens tokens"


def check_logprobs(
    generation: Generation, request: GenerateRequest, folders: Mapping[int, Path], when: str = ""
) -> None:
    """Each token's log-probability is that of the weights of its version; `folders` has those of each version.

    After an update an engine may compute the context anew, or go on with the keys and values that it has.
    """
    versions = generation.versions
    assert list(versions) == sorted(versions), "within a generation versions never fall"
    assert set(versions) <= set(folders), (
        f"tokens carry the version that sampled them: one of {sorted(folders)}, not {sorted(set(versions))}"
    )
    if not versions:
        return
    apart = _apart(hugging_face.logprobs, generation, request, folders)
    if apart[0] > hugging_face.ATOL and len(set(versions)) > 1:
        apart = min(apart, _apart(hugging_face.logprobs_with_kept_cache, generation, request, folders))
    assert apart[0] <= hugging_face.ATOL, (
        f"{when}log-probabilities must be those of transformers with the weights of the token's version, within "
        f"{hugging_face.ATOL:g} in float32: token {apart[1]} of {len(versions)} (version {versions[apart[1]]}) is "
        f"{apart[0]:.2g} apart"
    )


def _apart(reference: Any, generation: Generation, request: GenerateRequest, folders: Any) -> tuple[float, int]:
    """The largest difference from a reference, and the token that has it."""
    wanted = reference(folders, request.token_ids, generation.token_ids, generation.versions)
    return max((abs(a - b), i) for i, (a, b) in enumerate(zip(generation.logprobs, wanted, strict=True)))


def weights_of(shared: SharedEngine) -> dict[int, Path]:
    """The version in use and the folder of its weights."""
    return {} if shared.folder is None else {shared.engine.version: shared.folder}
