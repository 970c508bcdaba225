"""Roles: one state at any time, seconds that add up, and a sentence about who waits."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ale_train.rl.utilization import ENGINE_STATES, TRAINER_STATES, EngineRole, Role, advice, coarsen, role_metrics


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.tuples(st.sampled_from(TRAINER_STATES), st.floats(0, 50), st.booleans()), max_size=30))
def test_the_seconds_of_the_states_add_up_to_the_time_that_has_passed(moves: list[tuple[str, float, bool]]) -> None:
    clock = Clock()
    role = Role(TRAINER_STATES, clock)
    expected = dict.fromkeys(TRAINER_STATES, 0.0)
    laps = dict.fromkeys(TRAINER_STATES, 0.0)
    before = 0.0
    for state, seconds, lap in moves:
        role.enter(state)
        clock.now += seconds
        expected[state] += seconds
        if lap:
            laps = {name: laps[name] + value for name, value in role.lap().items()}
            assert all(a[2] == b[1] for a, b in pairwise(role.spans)), "without gap or overlap"
            assert sum(b - a for _, a, b in role.spans) == pytest.approx(sum(laps.values()) - before)
            before = sum(laps.values())
    laps = {name: laps[name] + value for name, value in role.lap().items()}
    assert laps == pytest.approx(expected)
    assert sum(laps.values()) == pytest.approx(clock.now - 100.0)


@given(st.lists(st.tuples(st.sampled_from(ENGINE_STATES), st.floats(0.01, 50)), min_size=1, max_size=60))
def test_few_spans_cover_the_same_time_and_each_part_has_its_longest_state(moves: list[tuple[str, float]]) -> None:
    spans, at = [], 100.0
    for state, lasting in moves:
        spans.append((state, at, at + lasting))
        at += lasting
    few = coarsen(spans, 20)
    assert len(few) <= 20
    assert (few[0][1], few[-1][2]) == (pytest.approx(100.0), pytest.approx(at))
    assert all(a[2] == b[1] for a, b in pairwise(few))
    if len(spans) <= 20:
        assert few == spans
        return
    width = (at - 100.0) / 20
    for part in range(20):
        began, middle = 100.0 + part * width, 100.0 + (part + 0.5) * width
        (shown,) = {state for state, a, b in few if a <= middle < b}
        shares = {
            wanted: sum(max(0.0, min(b, began + width) - max(a, began)) for state, a, b in spans if state == wanted)
            for wanted in ENGINE_STATES
        }
        assert shares[shown] == pytest.approx(max(shares.values()), abs=1e-6)


def test_a_state_that_a_role_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match="no state 'asleep', only wait_data"):
        Role(TRAINER_STATES).enter("asleep")


def test_the_engine_is_busy_while_a_request_is_there_and_loading_while_weights_come() -> None:
    clock = Clock()
    engine = EngineRole(clock)
    clock.now += 1
    with engine.sampling():
        clock.now += 2
        with engine.sampling():
            clock.now += 4
            with engine.loading():
                clock.now += 8
            clock.now += 16
        clock.now += 32
    clock.now += 64
    assert engine.lap() == {"starved": 65, "busy": 54, "loading": 8}
    assert set(ENGINE_STATES) == {"starved", "busy", "loading"}


def test_a_failed_request_leaves_the_engine_as_it_was() -> None:
    engine = EngineRole()
    with pytest.raises(RuntimeError), engine.sampling():
        raise RuntimeError
    with pytest.raises(RuntimeError), engine.loading():
        raise RuntimeError
    assert engine.state == "starved"


def lap(waits: float, starved: float, evaluation: float = 0.0) -> tuple[dict[str, float], dict[str, float]]:
    trainer = dict.fromkeys(TRAINER_STATES, 0.0) | {
        "wait_data": waits,
        "wait_evaluation": evaluation,
        "update": 1 - waits - evaluation,
    }
    return trainer, dict.fromkeys(ENGINE_STATES, 0.0) | {"starved": starved, "busy": 1 - starved}


@pytest.mark.parametrize(
    ("laps", "async_ratio", "ahead", "said"),
    [
        ([lap(0.5, 0.5)], 0, 0, "rl.async_ratio: 2 lets both work at once"),
        ([lap(0.1, 0.1)], 2, 1, "both are busy"),
        ([lap(0.1, 0.1)], 0, 0, "both are busy"),
        ([lap(0.6, 0.1)], 2, 1, "sampling is slower than training; add engines"),
        ([lap(0.1, 0.6)], 2, 1, "training is slower than sampling"),
        ([lap(0.5, 0.5)], 2, 1, "raise rl.ahead (1; async_ratio is 2)"),
        ([lap(0.5, 0.5)], 1, 1, "raise rl.async_ratio above rl.ahead (1)"),
        ([lap(0.0, 0.5, 0.5)], 2, 1, "new weights wait for an evaluation"),
        ([lap(0.6, 0.1), lap(0.0, 0.1), lap(0.0, 0.1)], 2, 1, "In the last 3 steps the trainer waited 20%"),
    ],
)
def test_the_sentence_names_what_to_change(
    laps: list[tuple[dict[str, float], dict[str, float]]], async_ratio: int, ahead: int, said: str
) -> None:
    assert said in advice(laps, async_ratio, ahead)


def test_bubbles_are_shares_of_the_lap() -> None:
    found = role_metrics(*lap(0.25, 0.75, 0.25))
    assert (found["bubble/trainer"], found["bubble/engine"]) == (0.5, 0.75)
    assert found["trainer/update_s"] == 0.5
    assert found["engine_state/busy_s"] == 0.25
