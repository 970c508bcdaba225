"""Opens the tables that a path names: a file by its ending, a folder of Hugging Face datasets, or a name of the hub."""

from __future__ import annotations

import re
from pathlib import Path

from ale.errors import ConfigError
from ale_data.arrow_tables import ParquetTable, open_folder, open_hub_data_set
from ale_data.tables import Table
from ale_data.text_tables import CsvTable, JsonlTable

ONLY_SPLIT = "train"
"""The split of a file."""
FORMATS: dict[str, type[JsonlTable] | type[CsvTable] | type[ParquetTable]] = {
    ".jsonl": JsonlTable,
    ".ndjson": JsonlTable,
    ".json": JsonlTable,
    ".csv": CsvTable,
    ".tsv": CsvTable,
    ".parquet": ParquetTable,
}
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def is_hub_name(path: str) -> bool:
    """Return whether a path can only mean a data set of the Hugging Face hub, such as `openai/gsm8k`."""
    return bool(_HUB_NAME.fullmatch(path)) and Path(path).suffix not in FORMATS and not Path(path).exists()


def open_file(path: Path) -> Table:
    """Return the table in a file. Raises `ConfigError` if there is none that can be read."""
    if not path.exists():
        raise ConfigError(f"There is no file or folder {path}; a relative path starts where the command runs.")
    if path.is_dir() or path.suffix not in FORMATS:
        raise ConfigError(f"{path} is no file of rows that can be read ({', '.join(FORMATS)}).")
    return FORMATS[path.suffix](path)


def open_path(path: str, subset: str | None = None, revision: str | None = None) -> dict[str, Table]:
    """Return the tables at a path by split; a file has the one split `train`. Raises `ConfigError`."""
    if is_hub_name(path):
        return open_hub_data_set(path, subset, revision)
    for key, value in (("subset", subset), ("revision", revision)):
        if value is not None:
            raise ConfigError(f"'{key}' belongs to a data set of the hub, and {path} is not one; leave it out.")
    if Path(path).is_dir():
        return open_folder(Path(path))
    return {ONLY_SPLIT: open_file(Path(path))}
