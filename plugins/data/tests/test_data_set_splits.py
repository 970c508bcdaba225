"""A folder of Hugging Face datasets has splits, which keep their names; shares divide what is trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest

from ale.errors import ConfigError
from ale.specs.driver import DriverContext
from ale_data import JsonlTasks


def source(tmp_path: Path, sizes: dict[str, int], **settings: Any) -> JsonlTasks:
    """A source of a folder with splits of so many rows."""
    splits = {
        name: datasets.Dataset.from_list([{"question": f"{name} {i}", "kind": name} for i in range(size)])
        for name, size in sizes.items()
    }
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "folder"))
    return JsonlTasks(JsonlTasks.Config(path=str(tmp_path / "folder"), **settings), DriverContext())


def questions(made: JsonlTasks, split: str) -> set[str]:
    return {task.instruction for task in made.tasks(split)}


def test_splits_keep_their_names_and_heldout_is_found(tmp_path: Path) -> None:
    made = source(tmp_path, {"train": 20, "test": 3})
    assert len(questions(made, "train")) == 20, "nothing is held out of data that have a split for it"
    assert questions(made, "heldout") == questions(made, "test") == {"test 0", "test 1", "test 2"}


def test_splits_may_be_called_otherwise(tmp_path: Path) -> None:
    made = source(tmp_path, {"train_sft": 4, "test_sft": 2}, splits={"train": "train_sft", "heldout": "test_sft"})
    assert (len(questions(made, "train")), len(questions(made, "heldout"))) == (4, 2)


def test_shares_divide_the_split_that_is_trained_on(tmp_path: Path) -> None:
    made = source(tmp_path, {"train": 20, "test": 3}, shares={"heldout": 0.2})
    train, held_out = questions(made, "train"), questions(made, "heldout")
    assert (len(train), len(held_out)) == (16, 4)
    assert all(question.startswith("train") for question in train | held_out)
    assert len(questions(made, "test")) == 3


def test_a_single_split_is_divided_whatever_its_name(tmp_path: Path) -> None:
    made = source(tmp_path, {"test": 20})
    assert (len(questions(made, "train")), len(questions(made, "heldout"))) == (18, 2)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"shares": {"test": 0.2}}, "the data have a split 'test' already; take it out of shares"),
        ({"columns": {"split": "kind"}}, "have the splits train, test already; leave out columns.split"),
        ({"shares": {"heldout": 0.2}, "splits": {"train": "main"}}, "the splits train, test already; leave out shares"),
        ({"columns": {"prompt": "text"}}, r"There is no column 'text', .*split train\) has the columns question, kind"),
    ],
)
def test_splits_that_do_not_fit_are_sentences(tmp_path: Path, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        questions(source(tmp_path, {"train": 5, "test": 3}, **settings), "train")
