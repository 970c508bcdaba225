"""Tables in text files, which are read line by line: JSONL (one JSON object a line), CSV and TSV (with a header)."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ale.errors import ConfigError
from ale.registry.validation import one_line_error
from ale_data.tables import Row, Table

_DECODER = json.JSONDecoder(parse_constant=lambda _: None)
"""NaN and Infinity are no JSON, and a task could not be written to a file and read back with them: they are null."""
_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")
_BOM = b"\xef\xbb\xbf"


class _TextTable(Table):
    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)
        self._state: tuple[int, int] | None = None

    def _open(self, at: int = 0) -> BinaryIO:
        """Open the file at a byte offset. Raises `ConfigError`, also if the file has changed since it was opened first,
        for the offsets of its rows are then others."""
        try:
            file = self.path.open("rb")
        except OSError as error:
            raise ConfigError(f"{self.name} cannot be read: {one_line_error(error.strerror)}.") from None
        status = os.fstat(file.fileno())
        self._state = self._state or (status.st_mtime_ns, status.st_size)
        if self._state != (status.st_mtime_ns, status.st_size):
            file.close()
            raise ConfigError(f"{self.name} was changed while the run read it; start the run again.")
        file.seek(at)
        return file

    def _text(self, line: bytes, place: str) -> str:
        try:
            return line.decode()
        except UnicodeDecodeError:
            raise ConfigError(f"{place}: this is not text in UTF-8; convert the file.") from None


class JsonlTable(_TextTable):
    """A file with one JSON object a line; empty lines are skipped."""

    def rows(self) -> Iterator[Row]:
        at = 0
        with self._open() as file:
            for number, line in enumerate(file, 1):
                if line.strip() and line != _BOM:
                    place = f"{self.name}, line {number}"
                    yield Row(self._read_object(line, place), place, at)
                at += len(line)

    def fetch(self, at: int, number: int) -> Row:
        place = f"{self.name}, row {number}"
        with self._open(at) as file:
            return Row(self._read_object(file.readline(), place), place, at)

    def _read_object(self, line: bytes, place: str) -> dict[str, Any]:
        text = self._text(line.removeprefix(_BOM), place).strip()
        try:
            value = _DECODER.decode(text)
            if _HALF_CHARACTER.search(text):
                json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{place}: a \\u escape is half a character (a lone surrogate); mend the text.") from None
        except (ValueError, RecursionError) as error:
            if text.startswith("["):
                raise self._is_list() from None
            raise ConfigError(f"{place}: this is not JSON ({one_line_error(error)}).") from None
        if isinstance(value, list):
            raise self._is_list()
        if not isinstance(value, dict):
            raise ConfigError(f"{place}: each line must be a JSON object with the row's columns.")
        return value

    def _is_list(self) -> ConfigError:
        """Return the error for a JSON list; the command it names must not write to the file that it reads."""
        return ConfigError(
            f"{self.name} holds a JSON list, and must hold one object a line; write a new file: `jq -c '.[]' "
            f"{self.path.name} > {self.path.stem}-rows.jsonl`."
        )


class CsvTable(_TextTable):
    """A CSV or TSV file whose first line names the columns; every value is text."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._delimiter = "\t" if path.suffix == ".tsv" else ","
        self._header: list[str] | None = None

    def rows(self) -> Iterator[Row]:
        with self._open() as file:
            header: list[str] | None = None
            for fields, place, at in self._records(file, 0, 1):
                if header is None:
                    header = self._header = self._check_header(fields)
                else:
                    yield Row(self._by_column(header, fields, place), place, at)

    def fetch(self, at: int, number: int) -> Row:
        if self._header is None:
            next(self.rows(), None)
        with self._open(at) as file:
            fields = next(self._records(file, at, None), ([], "", 0))[0]
        place = f"{self.name}, row {number}"
        return Row(self._by_column(self._header or [], fields, place), place, at)

    def _records(self, file: BinaryIO, at: int, line: int | None) -> Iterator[tuple[list[str], str, int]]:
        """Yield each record that is not empty, its place and its byte offset; a quoted value may hold line ends."""
        position, number = at, line or 0

        def lines() -> Iterator[str]:
            nonlocal position, number
            for raw in file:
                place = f"{self.name}, line {number}"
                position += len(raw)
                number += 1
                text = self._text(raw.removeprefix(_BOM) if position == len(raw) else raw, place)
                if "\0" in text:
                    raise ConfigError(f"{place}: this is no text, since it holds a NUL character.")
                yield text

        reader = csv.reader(lines(), delimiter=self._delimiter, strict=True)
        while True:
            place, start = f"{self.name}, line {number}", position
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise ConfigError(
                    f"{place}: this is no CSV ({one_line_error(error)}); JSONL has no such limits."
                ) from None
            if fields:
                yield fields, place, start

    def _check_header(self, fields: list[str]) -> list[str]:
        names = [name.strip() for name in fields]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None or "" in names:
            fault = f"names the column '{twice}' twice" if twice else "has a column without a name"
            raise ConfigError(f"{self.name}: the first line, which names the columns, {fault}.")
        return names

    def _by_column(self, header: list[str], fields: list[str], place: str) -> dict[str, Any]:
        if len(fields) != len(header):
            raise ConfigError(
                f"{place}: this row has {len(fields)} values, and the first line names {len(header)} columns; quote "
                "values that hold a separator or a line end."
            )
        return dict(zip(header, fields, strict=True))
