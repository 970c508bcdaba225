"""The rest of an interrupted generation is asked for exactly."""

from __future__ import annotations

import pytest

from ale.specs.engine import Generation
from ale_engines.pool.continuation import NOTHING, finish_if_complete, join_parts, request_rest

from .conftest import ask

PART = Generation((7, 8), (-0.5, -0.25), (1, 2), "length")


def test_the_rest_has_the_tokens_and_what_is_left_of_the_budget() -> None:
    request = ask("s", max_tokens=5, prompt=(1, 2), seed=3, stop_token_ids=(9,), temperature=0.5)
    rest = request_rest(request, PART)
    assert rest.token_ids == (1, 2, 7, 8)
    assert (rest.session, rest.sampling.max_tokens) == ("s", 3)
    assert (rest.sampling.stop_token_ids, rest.sampling.temperature) == ((9,), 0.5)
    assert request_rest(request, NOTHING) is request


def test_its_seed_follows_from_the_old_one_and_the_length() -> None:
    def seed(seed: int | None, part: Generation) -> int | None:
        return request_rest(ask(max_tokens=9, seed=seed), part).sampling.seed

    seeds = [seed(3, PART), seed(4, PART), seed(3, join_parts(PART, PART)), seed(-(2**70), PART)]
    assert seed(3, PART) == seeds[0]
    assert len(set(seeds)) == 4
    assert all(value is not None and 0 <= value < 2**31 for value in seeds)
    assert seed(None, PART) is None


def test_parts_are_joined_token_by_token() -> None:
    end = Generation((9,), (-1.0,), (3,), "stop")
    assert join_parts(PART, end) == Generation((7, 8, 9), (-0.5, -0.25, -1.0), (1, 2, 3), "stop")
    assert join_parts(NOTHING, end) == end


@pytest.mark.parametrize(
    ("max_tokens", "max_context", "stop", "reason"),
    [(2, 100, (), "length"), (9, 4, (), "length"), (9, 100, (8,), "stop"), (9, 100, (7,), None), (3, 5, (), None)],
)
def test_a_generation_to_which_nothing_is_missing_is_complete(
    max_tokens: int, max_context: int, stop: tuple[int, ...], reason: str | None
) -> None:
    request = ask(max_tokens=max_tokens, prompt=(1, 2), stop_token_ids=stop)
    complete = finish_if_complete(request, PART, max_context)
    assert (complete.finish_reason if complete else None) == reason
    assert finish_if_complete(request, NOTHING, 2) is None
