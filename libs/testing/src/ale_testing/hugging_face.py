"""The log-probabilities of transformers, with which those of an engine are compared.

An engine computes in float32 here, so that what is apart by more than `ATOL` is a mistake and no rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

ATOL = 1e-4
"""By how much the natural log-probability of a token may be apart from that of transformers, both in float32."""


def logprobs(
    folders: Mapping[int, Path], prompt: Sequence[int], tokens: Sequence[int], versions: Sequence[int]
) -> list[float]:
    """The log-probability of each token under the weights of its version, on the whole context before it."""
    found: dict[int, list[float]] = {}
    for version in set(versions):
        found[version] = _of_tokens(_logits(folders[version], [*prompt, *tokens[:-1]]), tokens)
    return [found[version][i] for i, version in enumerate(versions)]


def logprobs_with_kept_cache(
    folders: Mapping[int, Path], prompt: Sequence[int], tokens: Sequence[int], versions: Sequence[int]
) -> list[float]:
    """The same where the keys and values of earlier tokens stay those that the earlier weights computed."""
    context, past, seen, found = [*prompt, *tokens], None, 0, list[float]()
    for version, span in groupby(versions):
        first = len(found)
        last = first + len(list(span))
        # The token before the first of the span is the last that has not been computed.
        upto = len(prompt) + last - 1
        output = _model(folders[version])(_tensor(context[seen:upto]), past_key_values=past, use_cache=True)
        past, seen = output.past_key_values, upto
        found += _of_tokens(output.logits[0], tokens[first:last])
    return found


def _of_tokens(logits: Any, tokens: Sequence[int]) -> list[float]:
    """Of the last rows of `logits`, each token's log-probability in its own."""
    rows = logits[-len(tokens) :].log_softmax(-1)
    return [float(row[token]) for row, token in zip(rows, tokens, strict=True)]


def _logits(folder: Path, context: Sequence[int]) -> Any:
    return _model(folder)(_tensor(context)).logits[0]


def _tensor(ids: Sequence[int]) -> Any:
    torch = pytest.importorskip("torch", reason="transformers computes with torch")
    return torch.tensor([list(ids)])


@lru_cache(maxsize=8)
def _model(folder: Path) -> Any:
    torch = pytest.importorskip("torch", reason="transformers computes with torch")
    transformers = pytest.importorskip("transformers", reason="log-probabilities are compared with transformers'")
    model = transformers.AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32, local_files_only=True)

    def forward(*arguments: Any, **keywords: Any) -> Any:
        with torch.inference_mode():
            return model(*arguments, **keywords)

    return forward
