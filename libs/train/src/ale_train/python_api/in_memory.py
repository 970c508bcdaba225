"""Makes the data of a run file of what Python code passes: rows, functions, classes, paths, numbers of numpy.

1. Rows (a list of mappings, a `Dataset` of Hugging Face, a data frame of pandas) become a JSONL file, of which the run
   folder keeps a copy: as `tasks`, and wherever a run file names files of data (`path`, `files`, `data`).
2. Functions and classes become names: of a module that any process can import, or of this process
   (`ale.registry.user_functions.in_memory`). Runs in other processes (`cluster`) take only the first kind.
Everything else that YAML does not know is refused with a sentence.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ale.errors import ConfigError
from ale.registry.user_functions import MEMORY, describe_function, is_importable, load_function, name_function
from ale.task import HELDOUT

MAIN = "__main__"


class RunData:
    """Plain data of what Python code passes; rows are written into `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: list[Path] = []
        """The files of rows."""

    def of_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the data of a run file. Raises `ConfigError`."""
        data = {key: value for key, value in config.items() if key not in ("tasks", "reward")}
        plain = {str(key): self._plain(value, str(key)) for key, value in data.items()}
        if "tasks" in config:
            plain["tasks"] = self.of_tasks(config["tasks"])
        if "reward" in config:
            plain["reward"] = self.of_reward(config["reward"])
        return plain

    def of_tasks(self, value: Any, split: str | None = None, path: str = "tasks") -> Any:
        """Return the section `tasks`: for rows, the task source `jsonl` with a file of them, or with one for each split
        of a mapping. `split` is that of rows without a name of their own. Raises `ConfigError`."""
        if isinstance(value, Mapping) and value and all(map(_is_rows, value.values())):
            return {"use": "jsonl", "files": self._plain(value, f"{path}.files")}
        if isinstance(value, str | Mapping) or value is None:
            return self._plain(value, path)
        file = self._write_rows(_rows_of(value, path), f"{path}.{split}" if split else path)
        return {"use": "jsonl", "files": {split: file}} if split else {"use": "jsonl", "path": file}

    def of_reward(self, value: Any) -> Any:
        """Return the section `reward`: for a function the reward `python` with it, for a list their sum. Raises
        `ConfigError`."""
        if isinstance(value, list | tuple):
            value = {"use": "python", "functions": value}
        elif callable(value) and not isinstance(value, type):
            value = {"use": "python", "function": value}
        if isinstance(value, Mapping) and isinstance(functions := value.get("functions"), list | tuple):
            value = {**value, "functions": [{"function": one} if callable(one) else one for one in functions]}
        return self._plain(value, "reward")

    def _plain(self, value: Any, path: str) -> Any:
        """Return a value with what YAML does not know as what it does."""
        key = path.rpartition(".")[2]
        if isinstance(value, Mapping):
            items = {str(name): self._plain(item, f"{path}.{name}") for name, item in value.items()}
            if path.startswith("eval.sets.") and path.count(".") == 2 and "tasks" in value:
                items["tasks"] = self.of_tasks(value["tasks"], str(value.get("split", HELDOUT)), f"{path}.tasks")
            return items
        if _is_rows(value) and (key in ("path", "data") or path.rpartition(".")[0].endswith(".files")):
            file = self._write_rows(_rows_of(value, path), path)
            return [file] if key == "data" else file
        if isinstance(value, type) and value.__module__ != "builtins":
            return _name_class(value, path)
        if callable(value) and not hasattr(value, "tolist") and not isinstance(value, type):
            return name_function(value)
        if isinstance(value, list | tuple):
            return [self._plain(item, f"{path}.{number}") for number, item in enumerate(value)]
        if isinstance(value, Path):
            return str(value)
        return _plain_scalar(value, path, "a run file")

    def _write_rows(self, rows: Sequence[Any], path: str) -> str:
        """Write rows to a file and return its path."""
        if not rows:
            raise ConfigError(f"{path}: there are no rows; give at least one.")
        file = self.folder / f"{path}.jsonl"
        try:
            with file.open("w", encoding="utf-8") as out:
                for number, row in enumerate(rows):
                    if not isinstance(row, Mapping):
                        raise ConfigError(
                            f"{path}.{number}: a row is a mapping, such as {{'prompt': '1 + 1?', 'answer': '2'}}, not "
                            f"{row!r:.60}."
                        )
                    out.write(f"{json.dumps(_plain_row(row, f'{path}.{number}'))}\n")
        except OSError as error:
            raise ConfigError(f"{path}: its rows cannot be written to {file}: {error.strerror}.") from error
        self.files.append(file)
        return str(file)


def refuse_other_processes(data: Mapping[str, Any], cluster: str) -> None:
    """Raise `ConfigError` if a run whose episodes are in other processes names what only this process has."""
    for text in _texts(data):
        place, colon, name = text.rpartition(":")
        if colon and place in (MEMORY, MAIN):
            raise ConfigError(
                f"cluster: '{cluster}' runs episodes in other processes, which do not have '{name}': it is in the "
                f"memory of this one. Put it into a file and name it there, such as FILE.py:{name}, or import it from "
                "a module."
            )


def _texts(node: Any) -> Iterable[str]:
    if isinstance(node, str):
        yield node
    for item in node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ():
        yield from _texts(item)


def _is_rows(value: Any) -> bool:
    """Return whether a value can only be rows: a list of mappings that name no plugins, a data set, a data frame."""
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(item, Mapping) and "use" not in item for item in value)
    return _is_frame(value) or hasattr(value, "column_names")


def _is_frame(value: Any) -> bool:
    return hasattr(value, "to_dict") and hasattr(value, "columns")


def _rows_of(value: Any, path: str) -> Sequence[Any]:
    if _is_frame(value):
        rows: list[Any] = value.to_dict("records")
        return rows
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [*value]
    raise ConfigError(f"{path}: rows are a list of mappings, not {value!r:.60}.")


def _plain_row(value: Any, path: str) -> Any:
    """Return a row as JSON knows it; functions among its `tools` describe themselves."""
    if isinstance(value, Mapping):
        return {str(key): _plain_row(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_row(item, f"{path}.{number}") for number, item in enumerate(value)]
    if callable(value) and path.split(".")[-2] == "tools":
        try:
            return describe_function(load_function(name_function(value)))
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
    return _plain_scalar(value, path, "a row")


def _plain_scalar(value: Any, path: str, what: str) -> Any:
    """Return a value that is none of several. Raises `ConfigError` if JSON does not know it."""
    if callable(getattr(value, "tolist", None)):  # a number or an array of numpy or torch
        value = value.tolist()
    if value is None or isinstance(value, str | bool | int | float | list):
        return value
    how = "; name it in its file: {use: python, path: FILE.py, function: NAME}" if callable(value) else ""
    raise ConfigError(f"{path}: {what} cannot hold {value!r:.60}{how}.")


def _name_class(value: type, path: str) -> str:
    module = sys.modules.get(value.__module__)
    if getattr(module, value.__name__, None) is not value or not (is_importable(module) or value.__module__ == MAIN):
        raise ConfigError(
            f"{path}: the class '{value.__name__}' is not at the top of a module, so a run file cannot name it; put it "
            f"into a file: FILE.py:{value.__name__}."
        )
    return f"{value.__module__}:{value.__name__}"
