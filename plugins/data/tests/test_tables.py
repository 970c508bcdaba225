"""Every format gives the same rows, streamed or one by one, and says where a wrong row is."""

from __future__ import annotations

import csv
import datetime
import json
import os
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale.errors import ConfigError
from ale_data.arrow_tables import open_hub_data_set
from ale_data.open_tables import is_hub_name, open_file, open_path
from ale_data.tables import Table

ROWS = [{"question": f"What is {i} + {i}?\nSay it.", "answer": str(2 * i)} for i in range(7)]


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write rows in the format of the path's ending; without one, as a folder of `datasets`."""
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path, row_group_size=3)
    elif path.suffix in (".csv", ".tsv"):
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys(), delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix:
        path.write_text("".join(f"{json.dumps(row)}\n\n" for row in rows))
    else:
        datasets.Dataset.from_list(list(rows)).save_to_disk(str(path))
    return path


def only(path: Path) -> Table:
    (table,) = open_path(str(path)).values()
    return table


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json", "a.csv", "a.tsv", "a.parquet", "folder"])
def test_every_format_streams_its_rows_and_finds_each_again(tmp_path: Path, name: str) -> None:
    table = only(write(tmp_path / name, ROWS))
    assert table.columns() == ("question", "answer")
    rows = list(table.rows())
    assert [dict(row.values) for row in rows] == ROWS
    for number in (5, 0, 6, 2):
        assert table.fetch(rows[number].at, number + 1).values == ROWS[number]


@settings(max_examples=60, deadline=None)
@given(cells=st.lists(st.tuples(*[st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))] * 2)))
def test_any_text_survives_csv_and_is_found_by_its_offset(
    tmp_path_factory: pytest.TempPathFactory, cells: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("a", "b"), *cells])
    table = open_file(path)
    found = list(table.rows())
    assert [(row.values["a"], row.values["b"]) for row in found] == cells
    assert [table.fetch(row.at, i).values for i, row in enumerate(found, 1)] == [row.values for row in found]


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfquestion\nx\n")
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"question": "x"}\n')
    for name in ("a.csv", "a.jsonl"):
        (row,) = only(tmp_path / name).rows()
        assert row.values == {"question": "x"}
        assert only(tmp_path / name).fetch(row.at, 1).values == row.values


def test_what_json_cannot_hold_becomes_what_it_can(tmp_path: Path) -> None:
    day = datetime.date(2026, 1, 2)
    rows = [{"d": day, "n": Decimal("3.50"), "b": b"\xff", "x": float("nan"), "t": datetime.timedelta(seconds=3)}]
    nested = [{"m": [{"role": "user", "name": None}]}, {"m": [{"role": "user", "name": "Ann"}]}]
    (row,) = only(write(tmp_path / "a.parquet", rows)).rows()
    assert row.values == {"d": "2026-01-02", "n": "3.50", "b": {"base64": "/w=="}, "x": None, "t": 3.0}
    first, second = only(write(tmp_path / "b.parquet", nested)).rows()
    assert (first.values, second.values) == ({"m": [{"role": "user"}]}, nested[1]), "Arrow adds the keys of others"
    (tmp_path / "c.jsonl").write_text('{"x": NaN, "y": [Infinity]}\n')
    assert next(only(tmp_path / "c.jsonl").rows()).values == {"x": None, "y": [None]}


def test_splits_of_a_folder_are_its_tables(tmp_path: Path) -> None:
    both = datasets.DatasetDict({name: datasets.Dataset.from_list(ROWS[:n]) for name, n in (("train", 5), ("test", 2))})
    both.save_to_disk(str(tmp_path / "both"))
    tables = open_path(str(tmp_path / "both"))
    assert {name: len(list(table.rows())) for name, table in tables.items()} == {"train": 5, "test": 2}


GOOD = '{"question": "x"}\n'


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", GOOD + "{oops\n", r"a\.jsonl, line 2: this is not JSON \(Expecting property name"),
        ("a.jsonl", GOOD + "\n" + "[" * 100_000, r"a\.jsonl holds a JSON list"),
        ("a.jsonl", GOOD + "3\n", r"a\.jsonl, line 2: each line must be a JSON object"),
        (
            "a.jsonl",
            '[{"question": "x"}]\n',
            r"a\.jsonl holds a JSON list, .*`jq -c '\.\[\]' a\.jsonl > a-rows\.jsonl`",
        ),
        ("a.json", "[\n  {}\n]\n", r"a\.json holds a JSON list, .* a\.json > a-rows\.jsonl"),
        ("a.jsonl", '{"question": "\\ud800"}\n', r"a\.jsonl, line 1: a \\u escape is half a character"),
        ("a.jsonl", b'{"question": "\xff"}\n', r"a\.jsonl, line 1: this is not text in UTF-8"),
        ("a.jsonl", "", r"a\.jsonl is empty"),
        ("a.jsonl", "\n \n", r"a\.jsonl is empty"),
        ("a.csv", "", r"a\.csv is empty"),
        ("a.csv", "question,answer\n", r"a\.csv is empty"),
        ("a.csv", "question,answer\n1,2\n1,2,3\n", r"a\.csv, line 3: this row has 3 values, .* names 2 columns"),
        ("a.csv", 'question,answer\n1,"2\n3,4\n', r"a\.csv, line 2: this is no CSV \(unexpected end of data\)"),
        ("a.csv", "question,question\n1,2\n", r"a\.csv: the first line, .* names the column 'question' twice"),
        ("a.csv", "question,\n1,2\n", r"a\.csv: the first line, .* has a column without a name"),
        ("a.csv", "question\n" + "x" * 200_000 + "\n", r"a\.csv, line 2: this is no CSV \(field larger than"),
        ("a.csv", b"question\n\xff\n", r"a\.csv, line 2: this is not text in UTF-8"),
        ("a.csv", "question\na\0b\n", r"a\.csv, line 2: this is no text, since it holds a NUL"),
        ("a.parquet", "question\n", r"a\.parquet cannot be read as Parquet"),
        ("a.txt", "question\n", r"a\.txt is no file of rows that can be read \(\.jsonl, "),
    ],
)
def test_a_wrong_file_is_a_sentence_with_its_line(
    tmp_path: Path, name: str, content: str | bytes, sentence: str
) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=sentence):
        only(tmp_path / name).columns(), [*only(tmp_path / name).rows()]


def test_a_valid_pair_of_escapes_is_a_character(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"question": "\\ud83d\\ude00"}\n')
    assert next(only(tmp_path / "a.jsonl").rows()).values == {"question": "😀"}


def test_an_empty_parquet_file_is_refused(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"question": pyarrow.array([], "string")}), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=r"a\.parquet is empty"):
        only(tmp_path / "a.parquet").columns()


def test_a_folder_that_is_no_data_set_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"was not written by `save_to_disk` .* holds no dataset_dict\.json or state\.json"
    ):
        open_path(str(tmp_path))
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(ConfigError, match=r"The data set in .* cannot be loaded"):
        open_path(str(tmp_path))


def test_a_file_that_changes_is_not_read_at_offsets_that_are_others(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.csv"):
        table = only(write(tmp_path / name, ROWS))
        at = [*table.rows()][3].at
        write(tmp_path / name, [{"question": "new", "answer": "1"}, *ROWS])
        with pytest.raises(ConfigError, match=rf"{name} was changed while the run read it; start the run again"):
            table.fetch(at, 4)


def test_a_file_that_goes_away_or_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.csv", "a.parquet"):
        table = only(write(tmp_path / name, ROWS))
        at = next(table.rows()).at
        (tmp_path / name).unlink()
        with pytest.raises(ConfigError, match=rf"{name} cannot be read"):
            table.fetch(at, 1)
    with pytest.raises(ConfigError, match=r"There is no file or folder gone\.csv; a relative path starts where"):
        open_path("gone.csv")


@pytest.mark.parametrize(
    ("module", "name", "extra"), [("pyarrow", "a.parquet", "parquet"), ("datasets", "folder", "datasets")]
)
def test_a_missing_library_is_a_sentence_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str, extra: str
) -> None:
    path = write(tmp_path / name, ROWS)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "pyarrow.parquet", raising=False)
    with pytest.raises(ConfigError, match=rf"pip install 'ale-plugin-data\[{extra}\]'"):
        open_path(str(path))


def test_a_name_of_the_hub_without_a_network_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    assert is_hub_name("openai/gsm8k")
    assert not is_hub_name("data/x.jsonl")
    assert not is_hub_name(os.path.dirname(__file__))
    with pytest.raises(ConfigError, match=r"There is no file or folder openai/gsm8k, and .* `save_to_disk`"):
        open_hub_data_set("openai/gsm8k", "main", None)


def test_a_name_of_the_hub_is_downloaded_with_its_subset_and_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub itself is out of reach; the library's answer is a real data set."""
    asked: list[tuple[object, ...]] = []

    def load_dataset(name: str, subset: str | None, revision: str | None) -> datasets.DatasetDict:
        asked.append((name, subset, revision))
        rows = {"question": ["1 + 1?", "2 + 2?"], "answer": ["2", "4"]}
        return datasets.DatasetDict(train=datasets.Dataset.from_dict(rows), test=datasets.Dataset.from_dict(rows))

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    tables = open_path("openai/gsm8k", "main", "v2")
    assert asked == [("openai/gsm8k", "main", "v2")]
    assert [*tables] == ["train", "test"]
    assert [row.values for row in tables["test"].rows()][1] == {"question": "2 + 2?", "answer": "4"}


def test_a_subset_belongs_to_the_hub(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'subset' belongs to a data set of the hub, and .*a\.csv is not one"):
        open_path(str(write(tmp_path / "a.csv", ROWS)), subset="main")
