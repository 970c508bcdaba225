"""The sample buffer: the bound on staleness always holds, nothing is lost, nothing waits for ever."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ale_train.rl.sample_buffer import SampleBuffer


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make(batch_size: int, async_ratio: int, ahead: int, patience_s: float = 10.0) -> tuple[SampleBuffer[str], Clock]:
    clock = Clock()
    return SampleBuffer(batch_size, async_ratio, ahead, patience_s, clock), clock


def ordinals(buffer: SampleBuffer[str], version: int) -> list[int] | None:
    batch = buffer.take(version)
    return None if batch is None else [group.ordinal for group in batch]


def test_without_staleness_a_batch_is_what_was_admitted_for_it() -> None:
    buffer, _ = make(2, 0, 0)
    for version in range(3):
        assert buffer.room == 2
        for ordinal in (2 * version, 2 * version + 1):
            buffer.admit(ordinal, version)
        assert buffer.room == 0
        buffer.finish(2 * version + 1, ["late in the order"], version)
        assert ordinals(buffer, version) is None
        buffer.finish(2 * version, ["first"], version)
        assert ordinals(buffer, version) == [2 * version, 2 * version + 1]
        assert buffer.room == 0, "the batch in training is open"
        buffer.trained()


def test_a_finished_group_passes_a_slow_one_as_long_as_the_slow_one_can_keep_its_deadline() -> None:
    buffer, clock = make(2, 2, 1)
    for ordinal in range(4):
        buffer.admit(ordinal, 0)
    for ordinal in (1, 2, 3):
        buffer.finish(ordinal, ["x"], 0)
    assert ordinals(buffer, 0) == [1, 2], "group 0 may be trained on until version 2"
    buffer.trained()
    for ordinal in (4, 5):
        buffer.admit(ordinal, 1)
        buffer.finish(ordinal, ["x"], 1)
    assert ordinals(buffer, 1) == [3, 4]
    buffer.trained()
    for ordinal in (6, 7):
        buffer.admit(ordinal, 2)
        buffer.finish(ordinal, ["x"], 2)
    assert ordinals(buffer, 2) is None, "version 2 is the last one for group 0"
    assert buffer.ready == 3
    clock.now = 5
    assert buffer.patience_left_s == 5
    buffer.finish(0, ["x"], 0)
    assert ordinals(buffer, 2) == [0, 5]
    assert buffer.patience_left_s is None


def test_a_group_for_which_alone_the_trainer_has_waited_long_enough_is_dropped() -> None:
    buffer, clock = make(1, 1, 1)
    buffer.admit(0, 0)
    buffer.admit(1, 0)
    buffer.finish(1, ["x"], 0)
    assert ordinals(buffer, 0) == [1]
    buffer.trained()
    buffer.admit(2, 1)
    assert ordinals(buffer, 1) is None
    assert buffer.patience_left_s is None, "nothing is finished: it waits for both"
    buffer.finish(2, ["x"], 1)
    assert ordinals(buffer, 1) is None
    assert buffer.expire(1) == []
    clock.now = 10
    assert [group.ordinal for group in buffer.expire(1)] == [0]
    assert not buffer.finish(0, ["too late"], 0)
    assert ordinals(buffer, 1) == [2]


def test_the_patience_begins_anew_when_the_trainer_could_go_on() -> None:
    buffer, clock = make(1, 1, 1)
    buffer.admit(0, 0)
    buffer.admit(1, 1)
    buffer.finish(1, ["x"], 1)
    assert ordinals(buffer, 1) is None
    clock.now = 9
    buffer.finish(0, ["x"], 0)
    assert ordinals(buffer, 1) == [0]
    buffer.trained()
    clock.now = 20
    assert buffer.expire(2) == []


def test_a_group_without_a_rollout_keeps_its_place() -> None:
    buffer, _ = make(2, 0, 0)
    buffer.admit(0, 0)
    buffer.admit(1, 0)
    buffer.finish(0, [], None)
    buffer.finish(1, ["x"], 0)
    assert ordinals(buffer, 0) == [0, 1]


def test_an_even_group_leaves_and_another_one_is_admitted() -> None:
    buffer, _ = make(2, 0, 0)
    buffer.admit(0, 0)
    buffer.admit(1, 0)
    buffer.finish(1, ["x"], 0)
    buffer.drop(1)
    assert buffer.room == 1
    buffer.admit(2, 0)
    assert buffer.room == 0


def test_what_cannot_be_admitted_is_refused() -> None:
    buffer, _ = make(1, 1, 0)
    buffer.admit(0, 0)
    with pytest.raises(ValueError, match="group 1 cannot be admitted: 1 groups are open"):
        buffer.admit(1, 0)
    with pytest.raises(ValueError, match=r"ahead \(2\) must not be above async_ratio \(1\)"):
        make(1, 1, 2)


@dataclass
class Simulation:
    """A run of the buffer in which hypothesis decides what happens next."""

    buffer: SampleBuffer[str]
    clock: Clock
    steps: int
    batch_size: int
    async_ratio: int
    version: int = 0
    next_ordinal: int = 0
    running: dict[int, int] = field(default_factory=dict)
    """For each running group the version at its admission."""
    in_training: bool = False
    steps_done: int = 0
    trained: list[tuple[int, int]] = field(default_factory=list)
    """(ordinal, age) in the order of training."""
    dropped: list[int] = field(default_factory=list)
    expired: list[int] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return self.steps_done == self.steps

    def admit(self) -> None:
        wanted = (self.steps - self.steps_done) * self.batch_size - self.buffer.open
        for _ in range(min(self.buffer.room, wanted)):
            self.buffer.admit(self.next_ordinal, self.version)
            self.running[self.next_ordinal] = self.version
            self.next_ordinal += 1

    def finish(self, data: st.DataObject, *, with_drops: bool) -> None:
        ordinal = data.draw(st.sampled_from(sorted(self.running)))
        admitted = self.running.pop(ordinal)
        began = data.draw(st.integers(admitted, self.version))  # a rollout may wait for its turn, or be made again
        kept = data.draw(st.booleans()) or not with_drops
        if not self.buffer.finish(ordinal, ["x"] if kept else [], began if kept else None):
            assert ordinal in self.expired
        elif with_drops and data.draw(st.integers(0, 4)) == 0:
            self.buffer.drop(ordinal)
            self.dropped.append(ordinal)

    def begin_training(self) -> bool:
        batch = self.buffer.take(self.version)
        if batch is None:
            return False
        assert len(batch) == self.batch_size
        ages = [(group.ordinal, self.version - group.version) for group in batch]
        assert all(age <= self.async_ratio for _, age in ages)
        self.trained += ages
        self.in_training = True
        return True

    def end_training(self) -> None:
        self.version += 1
        self.buffer.trained()
        self.steps_done += 1
        self.in_training = False


SIZES = st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(0, 3)).filter(lambda s: s[2] <= s[1])


@given(SIZES, st.integers(1, 12), st.booleans(), st.booleans(), st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_bound_holds_and_every_group_is_trained_on_once_whatever_the_order_of_arrival(
    sizes: tuple[int, int, int], steps: int, with_drops: bool, with_patience: bool, data: st.DataObject
) -> None:
    batch_size, async_ratio, ahead = sizes
    buffer, clock = make(batch_size, async_ratio, ahead)
    run = Simulation(buffer, clock, steps, batch_size, async_ratio)
    while not run.done:
        run.admit()
        assert buffer.open <= (ahead + 1) * batch_size
        if not run.in_training and run.begin_training():
            continue
        moves = ["finish"] * bool(run.running) + ["end"] * run.in_training
        if with_patience and buffer.patience_left_s is not None:
            moves.append("expire")
        assert moves, "nothing can happen any more: a deadlock"
        match data.draw(st.sampled_from(moves)):
            case "finish":
                run.finish(data, with_drops=with_drops)
            case "end":
                run.end_training()
            case "expire":
                clock.now += 10
                run.expired += [group.ordinal for group in buffer.expire(run.version)]
    trained = [ordinal for ordinal, _ in run.trained]
    assert len(set(trained)) == len(trained) == steps * batch_size
    assert sorted([*trained, *run.dropped, *run.expired]) == list(range(run.next_ordinal)), "none is lost"


@given(st.integers(1, 4), st.integers(1, 3), st.lists(st.integers(1, 9), min_size=40, max_size=40))
def test_slow_groups_are_trained_on_as_often_as_fast_ones(
    batch_size: int, async_ratio: int, lengths: list[int]
) -> None:
    """Groups take as many ticks as they are long, and a step of training takes one: all of them are trained on."""
    buffer, clock = make(batch_size, async_ratio, 1)
    ends: dict[int, float] = {}
    trained: list[int] = []
    version = 0
    count = len(lengths) // batch_size * batch_size
    while len(trained) < count:
        while buffer.room and len(ends) < count:
            ordinal = len(ends)
            buffer.admit(ordinal, version)
            ends[ordinal] = clock.now + lengths[ordinal]
        clock.now += 1
        for group in buffer.groups():
            if group.running and ends[group.ordinal] <= clock.now:
                buffer.finish(group.ordinal, ["x"], group.version)
        if (batch := ordinals(buffer, version)) is not None:
            trained += batch
            version += 1
            buffer.trained()
    assert sorted(trained) == list(range(count))
    assert sorted(lengths[i] for i in trained) == sorted(lengths[:count])
