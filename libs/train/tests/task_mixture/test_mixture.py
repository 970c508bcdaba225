"""These tests check mixtures of task sources: the order, ids that two sources share, and sources without tasks."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from ale.errors import ConfigError
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.tasks import TaskSource
from ale.task import Task, TaskTests
from ale_train.task_mixture import MixedSource, MixedTasks


class Listed(Driver, TaskSource):
    """Gives the tasks that it was made with."""

    def __init__(self, *names: str, endless: bool = False) -> None:
        super().__init__(PluginConfig(), DriverContext())
        self.names, self.endless, self.asked = names, endless, []

    def tasks(self, split: str) -> Iterator[Task]:
        if split != "train":
            raise ConfigError(f"There is no split '{split}'.")
        names = itertools.chain(self.names, (f"more-{i}" for i in itertools.count())) if self.endless else self.names
        return (Task(id=name, instruction="Do it.", tests=TaskTests(command="true"), tags=("own",)) for name in names)

    def demonstrator(self, task: Task, seed: int) -> Any:
        self.asked.append(task.id)
        return None


def ids(mix: MixedTasks, n: int = 100) -> list[str]:
    return [t.id for t in itertools.islice(mix.tasks("train"), n)]


def test_tasks_are_dealt_by_weight_in_a_fixed_order() -> None:
    mix = MixedTasks([MixedSource("a", Listed(endless=True), 3), MixedSource("b", Listed("b0", endless=True), 1)])
    first = list(itertools.islice(mix.tasks("train"), 400))
    assert collections.Counter(t.tags[-1] for t in first) == {"a": 300, "b": 100}
    assert [t.tags[-1] for t in first[:8]] == ["a", "a", "b", "a", "a", "a", "b", "a"]
    assert first == list(itertools.islice(mix.tasks("train"), 400))


def test_a_source_that_runs_out_begins_anew_until_all_have_ended() -> None:
    mix = MixedTasks([MixedSource("a", Listed("a0", "a1")), MixedSource("b", Listed("b0", "b1", "b2", "b3"))])
    assert ids(mix) == ["a0", "b0", "a1", "b1", "a0", "b2", "a1", "b3", "a0"]


def test_two_sources_with_one_id_are_told_apart_and_demonstrated_by_their_own() -> None:
    one, two = Listed("x", "y"), Listed("x", "z")
    mix = MixedTasks([MixedSource("bash", one, tags=("easy",)), MixedSource("bash", two)])
    found = list(itertools.islice(mix.tasks("train"), 4))
    assert [t.id for t in found] == ["x", "bash.1/x", "y", "z"]
    assert found[0].tags == ("own", "easy", "bash")
    for t in found:
        mix.demonstrator(t, 0)
    assert (one.asked, two.asked) == (["x", "y"], ["x", "z"])


def test_a_split_that_a_source_does_not_have_names_the_source() -> None:
    mix = MixedTasks([MixedSource("a", Listed("x"))])
    with pytest.raises(ConfigError, match=r"tasks\.mix\.0: There is no split 'heldout'"):
        next(iter(mix.tasks("heldout")))


def test_a_source_without_tasks_is_named_with_what_to_do() -> None:
    mix = MixedTasks([MixedSource("a", Listed("x")), MixedSource("b", Listed())])
    with pytest.raises(
        ConfigError, match=r"tasks\.mix\.1: 'b' has no tasks in its split 'train': give it some .*eval\.split"
    ):
        ids(mix)
