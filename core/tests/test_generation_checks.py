"""Whatever an engine answers is either right, or an error that says what is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ale.errors import EngineError
from ale.session.generation_checks import check_generation
from ale.session.tokenizer import ChatTokenizer
from ale.specs.engine import GenerateRequest, Generation, Sampling
from ale_testing.fake_engines import TOKENIZER, whole_answer

REQUEST = GenerateRequest((1, 2), Sampling(max_tokens=4))
GOOD = whole_answer("Yes")
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "good", [GOOD, replace(GOOD, logprobs=(0.0, -1, -1e-9, -60.0)), Generation((), (), (), "abort")]
)
def test_what_is_right_comes_back_as_it_is(good: Generation) -> None:
    assert check_generation(good, REQUEST, TOKENIZER.id_limit) is good


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (None, "with NoneType, not with a Generation"),
        ({"token_ids": [1]}, "with dict"),
        (whole_answer("Yes!"), "5 tokens, where 4 were allowed"),
        (replace(GOOD, token_ids=[1, 2, 3, 4]), "must be tuples"),  # type: ignore[arg-type]
        (replace(GOOD, token_ids=None), "must be tuples"),  # type: ignore[arg-type]
        (
            replace(GOOD, token_ids=(1, 2, 3, TOKENIZER.id_limit)),
            f"the token {TOKENIZER.id_limit}, and the vocabulary",
        ),
        (replace(GOOD, token_ids=(1, 2, 3, -1)), "the token -1"),
        (replace(GOOD, token_ids=(1, 2, 3, "4")), "must be whole numbers"),  # type: ignore[arg-type]
        (replace(GOOD, token_ids=(1, 2, 3, 4.0)), "must be whole numbers"),  # type: ignore[arg-type]
        (replace(GOOD, logprobs=(-0.1,)), "4 tokens, 1 log-probabilities and 4 versions"),
        (replace(GOOD, versions=()), "and 0 versions"),
        (replace(GOOD, logprobs=(-0.1, NAN, -0.1, -0.1)), "must be finite"),
        (replace(GOOD, logprobs=(-0.1, -INF, -0.1, -0.1)), "must be finite"),
        (replace(GOOD, logprobs=(-0.1, 0.5, -0.1, -0.1)), "at most 0"),
        (replace(GOOD, logprobs=(-0.1, "x", -0.1, -0.1)), "no number"),  # type: ignore[arg-type]
        (replace(GOOD, logprobs=(-0.1, None, -0.1, -0.1)), "no number"),  # type: ignore[arg-type]
        (replace(GOOD, versions=(1, 1, None, 1)), "must be whole numbers"),  # type: ignore[arg-type]
        (replace(GOOD, finish_reason="bored"), "finish reason is 'bored'"),  # type: ignore[arg-type]
    ],
)
def test_garbage_is_the_engines_fault_and_is_named(bad: Any, sentence: str) -> None:
    with pytest.raises(EngineError, match=sentence):
        check_generation(bad, REQUEST, TOKENIZER.id_limit)


@pytest.mark.parametrize("in_text_config", [False, True])
def test_tokens_of_a_models_padding_are_no_fault_and_no_text(tmp_path: Path, in_text_config: bool) -> None:
    TOKENIZER.save(tmp_path)
    sizes = {"vocab_size": TOKENIZER.vocab_size + 64}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": sizes} if in_text_config else sizes))
    tokenizer = ChatTokenizer.load(tmp_path)
    padded = replace(GOOD, token_ids=(*GOOD.token_ids[:-1], TOKENIZER.vocab_size + 63))
    assert check_generation(padded, REQUEST, tokenizer.id_limit) is padded
    assert tokenizer.decode(padded.token_ids) == TOKENIZER.decode(GOOD.token_ids[:-1])
    with pytest.raises(EngineError, match=f"the token {TOKENIZER.vocab_size + 64}, and the vocabulary"):
        check_generation(replace(GOOD, token_ids=(1, 2, 3, TOKENIZER.vocab_size + 64)), REQUEST, tokenizer.id_limit)
