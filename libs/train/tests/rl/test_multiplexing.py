"""The policy that lends the trainer's machines to engines, over waits as they follow one another in a run."""

from __future__ import annotations

from ale_train.rl.multiplexing import Multiplexing

BATCH = 8
COST_S = 0.5


def test_one_wait_without_lending_that_is_as_long_as_those_with_it_does_not_end_lending() -> None:
    """Waits of long tails: a batch that happens to be ready breaks the lending off, and the next waits are as long as
    those before it. They would be shorter with more engines, whatever the waits before were."""
    policy = Multiplexing(BATCH, share=0.5)
    assert [policy.expand(0, waited_s, COST_S) for waited_s in (2.3, 0.4, 2.7)] == [True] * 3
    assert not policy.expand(BATCH, 4.2, COST_S), "the next batch is ready"
    policy.expand(0, 0.0, COST_S)
    assert [policy.expand(0, waited_s, COST_S) for waited_s in (2.9, 2.7, 2.8)] == [True] * 3


def test_the_first_wait_for_engines_without_work_is_soon_forgotten() -> None:
    """The first batch is waited for as a whole, also where training takes longer than rollouts."""
    policy = Multiplexing(BATCH, share=0.5)
    decided = [policy.expand(0, waited_s, COST_S) for waited_s in (2.0, *[0.01] * 5)]
    assert decided[0], "nothing else is known yet"
    assert decided[-3:] == [False] * 3


def test_a_wait_counts_the_same_whether_engines_were_lent_or_not() -> None:
    policy, other = Multiplexing(BATCH, share=0.75), Multiplexing(BATCH, share=0.75, lending=False)
    policy.expand(0, 1.0, COST_S)
    other.expand(0, 4.0, COST_S)
    assert policy.wait_s == other.wait_s == 4.0
