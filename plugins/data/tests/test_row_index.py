"""Shares divide all rows without overlap, equal prompts stay together, and the shuffle is a seeded permutation."""

from __future__ import annotations

from array import array
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ale_data.row_index import RowIndex, divide

HASHES = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=200)
SHARES = st.dictionaries(st.sampled_from(["heldout", "test", "small"]), st.floats(0.001, 0.33), min_size=1)


@given(HASHES, SHARES)
def test_shares_are_disjoint_and_cover_every_row_in_its_order(hashes: list[int], shares: dict[str, float]) -> None:
    splits = divide(hashes, shares)
    assert set(splits) == {*shares, "train"}
    assert sorted(number for rows in splits.values() for number in rows) == [*range(len(hashes))]
    assert all([*rows] == sorted(rows) for rows in splits.values())


@given(st.sets(st.integers(0, 2**64 - 1), min_size=3), st.floats(0.001, 1))
def test_a_share_of_different_rows_is_exact_and_never_empty(hashes: set[int], share: float) -> None:
    splits = divide([*hashes], {"heldout": share})
    assert len(splits["heldout"]) == max(1, round(share * len(hashes)))


@given(st.lists(st.integers(0, 5), min_size=1), SHARES)
def test_rows_with_one_prompt_are_in_one_split(hashes: list[int], shares: dict[str, float]) -> None:
    splits = divide(hashes, shares)
    split_of = {(hashes[number], name) for name, rows in splits.items() for number in rows}
    assert max(Counter(value for value, _ in split_of).values()) == 1


@given(st.lists(st.integers(0, 1000), unique=True), st.integers(0, 9))
def test_the_order_is_a_permutation_that_the_seed_decides(numbers: list[int], seed: int) -> None:
    index = RowIndex((), splits={"train": array("Q", numbers), "test": array("Q", numbers)})
    shuffled = index.order("train", seed)
    assert sorted(shuffled) == sorted(numbers)
    assert shuffled == index.order("train", seed)
    assert [*index.order("train", None)] == [*index.splits["train"]] == numbers


def test_seeds_and_splits_have_orders_of_their_own() -> None:
    index = RowIndex((), splits={name: array("Q", range(50)) for name in ("train", "test")})
    orders = {tuple(index.order(name, seed)) for name in index.splits for seed in range(4)}
    assert len(orders) == 8
