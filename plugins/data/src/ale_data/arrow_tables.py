"""Tables of Apache Arrow: Parquet files (pyarrow), and the folders and the hub of Hugging Face (`datasets`).

Both libraries are optional and imported when a run file names such data. Rows of `datasets` are mapped from disk. A
Parquet file is streamed row group by row group; only where single rows are fetched, in a shuffled order, it is held in
memory in Arrow's form.
"""

from __future__ import annotations

import base64
import datetime
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ale.errors import ConfigError
from ale.registry.validation import describe_error, one_line_error
from ale_data.tables import Row, Table

BATCH_ROWS = 256
SAVED = ("dataset_dict.json", "state.json")
"""One of them is in a folder that `save_to_disk` wrote: of several splits, or of one."""


class ParquetTable(Table):
    """A Parquet file. Raises `ConfigError` if pyarrow is missing."""

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow.parquet
        except ImportError:
            raise ConfigError(
                f"{path}: reading Parquet takes pyarrow; `pip install 'ale-plugin-data[parquet]'`."
            ) from None
        self._parquet = pyarrow.parquet
        self._wrong = (pyarrow.ArrowException, OSError)
        self._whole: Any = None
        self.path, self.name = path, str(path)

    def rows(self) -> Iterator[Row]:
        number = 0
        try:
            with self._parquet.ParquetFile(self.path) as file:
                for batch in file.iter_batches(BATCH_ROWS):
                    for values in batch.to_pylist():
                        number += 1
                        yield Row(as_json(values), f"{self.name}, row {number}", number - 1)
        except self._wrong as error:
            raise self._unreadable(error) from None

    def fetch(self, at: int, number: int) -> Row:
        try:
            if self._whole is None:
                self._whole = self._parquet.read_table(self.path)
            (values,) = self._whole.slice(at, 1).to_pylist()
        except self._wrong as error:
            raise self._unreadable(error) from None
        return Row(as_json(values), f"{self.name}, row {number}", at)

    def _unreadable(self, error: BaseException) -> ConfigError:
        return ConfigError(f"{self.name} cannot be read as Parquet: {one_line_error(error)}.")


class DataSetTable(Table):
    """One split of a Hugging Face data set, which is on disk."""

    def __init__(self, name: str, data_set: Any) -> None:
        self.name, self._data = name, data_set.with_format("arrow")  # so pictures and sounds are not decoded

    def rows(self) -> Iterator[Row]:
        number = 0
        for batch in self._data.iter(BATCH_ROWS):
            for values in batch.to_pylist():
                number += 1
                yield Row(as_json(values), f"{self.name}, row {number}", number - 1)

    def fetch(self, at: int, number: int) -> Row:
        (values,) = self._data[at].to_pylist()
        return Row(as_json(values), f"{self.name}, row {number}", at)


def open_folder(folder: Path) -> dict[str, Table]:
    """Return the tables of a folder that `save_to_disk` wrote, by split. Raises `ConfigError`."""
    if not any((folder / name).is_file() for name in SAVED):
        raise ConfigError(
            f"The folder {folder} was not written by `save_to_disk` of Hugging Face datasets (it holds no "
            f"{' or '.join(SAVED)}); name the files in it instead."
        )
    datasets = _import_datasets(str(folder))
    try:
        found = datasets.load_from_disk(str(folder))
    except Exception as error:  # the library raises errors of many kinds, and each means that the folder is wrong
        raise ConfigError(f"The data set in {folder} cannot be loaded: {describe_error(error)}.") from error
    return _by_split(str(folder), found)


def open_hub_data_set(name: str, subset: str | None, revision: str | None) -> dict[str, Table]:
    """Download a data set of the Hugging Face hub, or take it from the library's cache, and return its tables by split.

    Raises `ConfigError`, also where there is no network."""
    datasets = _import_datasets(name)
    try:
        found = datasets.load_dataset(name, subset, revision=revision)
    except Exception as error:  # no network, no such name, no access, a subset that is missing
        raise ConfigError(
            f"There is no file or folder {name}, and no data set of this name can be had from the Hugging Face hub "
            f"({describe_error(error)}). Where there is no network, save it elsewhere with `save_to_disk` and give the "
            "folder's path."
        ) from error
    return _by_split(name, found)


def _import_datasets(name: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise ConfigError(
            f"{name}: folders and names of Hugging Face data sets take `datasets`; "
            "`pip install 'ale-plugin-data[datasets]'`. Files (.jsonl, .csv, .parquet) do not."
        ) from None
    return datasets


def _by_split(name: str, found: Any) -> dict[str, Table]:
    if not isinstance(found, dict):
        found = {str(found.split or "train"): found}
    return {str(split): DataSetTable(f"{name} (split {split})", data) for split, data in found.items()}


def as_json(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of Arrow with values that JSON can hold: dates as ISO 8601, decimals as text, durations in seconds,
    bytes as `{"base64": ...}`, NaN as null. Keys without a value inside nested values are left out: Arrow gives every
    object of a column the keys of all others."""
    return {str(key): _plain(value) for key, value in row.items()}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    return str(value)
