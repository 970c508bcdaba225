"""What the task source yields: same tasks for the same settings, splits that share none, families in turn."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import islice

import pytest
from pydantic import ValidationError

from ale.errors import ConfigError
from ale_bash import BashTasks
from ale_bash.families import FAMILIES
from ale_bash.family import OUTPUTS, WORDS
from ale_bash.task_source import content_hash

Source = Callable[..., BashTasks]


def test_another_process_yields_the_same_tasks(source: Source) -> None:
    code = (
        "import json; from ale_bash import BashTasks; from ale.specs.driver import DriverContext;"
        "s = BashTasks(BashTasks.Config(train_tasks=40), DriverContext());"
        "print(json.dumps([t.model_dump_json() for t in s.tasks('train')]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [t.model_dump_json() for t in source(train_tasks=40).tasks("train")]


def test_another_seed_yields_other_tasks(source: Source) -> None:
    first, second = (list(source(seed=seed, train_tasks=64).tasks("train")) for seed in (0, 1))
    assert not {content_hash(t) for t in first} & {content_hash(t) for t in second}


def test_no_task_comes_twice_in_or_across_the_splits(source: Source) -> None:
    bash = source(train_tasks=4096)
    train, heldout = list(bash.tasks("train")), list(bash.tasks("heldout"))
    assert (len(train), len(heldout)) == (4096, 256)
    assert len({content_hash(t) for t in train + heldout}) == len({t.id for t in train + heldout}) == 4096 + 256


def test_a_prefix_holds_as_many_tasks_of_each_family(source: Source) -> None:
    assert set(Counter(t.tags for t in islice(source().tasks("train"), 80)).values()) == {10}


def test_a_familys_tasks_do_not_depend_on_the_other_families(source: Source) -> None:
    alone = list(source(families=("count",), train_tasks=10).tasks("train"))
    among = [t for t in source(train_tasks=80).tasks("train") if t.tags == ("count",)]
    assert alone == among


def test_an_endless_split_repeats_itself_but_never_a_held_out_task(source: Source) -> None:
    bash = source(families=("write",), train_tasks=None, heldout_tasks=64)
    held_out = {content_hash(t) for t in bash.tasks("heldout")}
    drawn = [content_hash(t) for t in islice(bash.tasks("train"), 5000)]
    assert len(set(drawn)) < len(drawn)
    assert not held_out & set(drawn)


def test_more_tasks_than_a_family_has_are_refused(source: Source) -> None:
    with pytest.raises(ConfigError, match=r"'write' has no further tasks .* lower tasks.train_tasks"):
        list(source(families=("write",), train_tasks=100_000).tasks("train"))


def test_an_unknown_family_gets_the_nearest_name(source: Source) -> None:
    with pytest.raises(ValidationError, match=r"no family 'cuont' \(did you mean 'count'\?\)"):
        source(families=("write", "cuont"))


def test_an_unknown_split_is_refused(source: Source) -> None:
    with pytest.raises(ConfigError, match="splits train, heldout and graded, not 'test'"):
        source().tasks("test")


def test_graded_tasks_join_the_splits_when_asked_for(source: Source) -> None:
    train, heldout = (list(source(include="graded").tasks(split)) for split in ("train", "heldout"))
    assert (len(train), len(heldout)) == (15, 5)
    assert sorted(t.id for t in train + heldout) == sorted(t.id for t in source().tasks("graded"))
    assert len(list(source(include="all", train_tasks=8).tasks("train"))) == 23


def test_no_word_is_part_of_another_or_means_something_else() -> None:
    assert len(set(WORDS)) == len(WORDS)
    assert not [(a, b) for a in WORDS for b in WORDS if a != b and a in b]
    assert not {output.removesuffix(".txt") for output in OUTPUTS} & set(WORDS)
    assert not set(FAMILIES) & set(WORDS)
