"""Files of the user's that a run file names, as in `use: ./mine.py:Mine`: where they are, and the run's own copies.

1. `resolve_files` makes their paths absolute: they are relative to the run file that names them, or for an override, to
   the current folder. Copies of rows, which a run folder's own config.yaml names, are relative to that folder.
2. `read_files` returns the text of each as it was imported, and of the files beside it that it imports.
3. `plan_copies` says what a run folder keeps: these texts in the folder `files/`, and a `config.yaml` that names the
   copies. So a run can be resumed, evaluated and served when the files have changed or are gone.
Of a module (`use: package.module:Mine`) only the text is kept, to be read; the run goes on naming the module.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ale.config.plugin_field import PluginPlace, plugin_places
from ale.config.references import Resolved
from ale.config.yaml_text import dump_yaml
from ale.registry.drivers import find_plugin
from ale.registry.user_classes import import_place, join_file, split_file
from ale.registry.user_files import text_of
from ale.registry.user_functions import MEMORY
from ale.specs.choice import PluginRules
from ale.store.output_files import write_whole
from ale_train.config.run import RunConfig

FILES = "files"
"""The folder of the copies in a run folder."""
ORIGINS = "origins.json"
"""The file in it that says where each copy comes from, with the SHA-256 of its text."""
MODULES = "modules"
"""The folder in it with the texts of modules."""


# -- where they are --------------------------------------------------------------------------------------------


Place = tuple[str | int, ...]
"""The keys and numbers that lead to a value of run data."""


def resolve_files(data: dict[str, Any], folder: Path) -> None:
    """Make the paths of the files that run data names absolute, in place; relative ones begin in `folder`."""
    for place in _find_uses(data):
        holder = _node_at(data, place[:-1])
        holder[place[-1]] = resolve_use(holder[place[-1]], folder)
    rows = {f"{FILES}/{name}": os.path.abspath(folder / FILES / name) for name in _copies_of_rows(folder)}
    _replace_texts(data, rows)


def resolve_use(use: str, folder: Path) -> str:
    """Return what `use` says with an absolute path, if it names a file."""
    split = split_file(use)
    if split is None or split[0].startswith("${"):  # such as ${oc.env:HOME}/mine.py, which is absolute itself
        return use
    file, name = split
    return join_file(os.path.abspath(folder / Path(file).expanduser()), name)


def _find_uses(data: dict[str, Any]) -> list[Place]:
    """Return every place of run data with the name of a plugin."""
    found = dict.fromkeys(_find_use_keys(data, ()))
    for place in _plugin_places():
        found |= dict.fromkeys(_find_bare_names(data, tuple(place.path.split(".")), place.several))
    sets = _node_at(data, ("eval", "sets"))
    for name in sets if isinstance(sets, dict) else ():
        found |= dict.fromkeys(_find_bare_names(data, ("eval", "sets", name, "tasks"), None))
    return list(found)


@cache
def _plugin_places() -> tuple[PluginPlace, ...]:
    return tuple(plugin_places(RunConfig))


def _find_use_keys(node: Any, above: Place) -> Iterator[Place]:
    if isinstance(node, dict) and isinstance(node.get("use"), str):
        yield (*above, "use")
    for key, item in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from _find_use_keys(item, (*above, key))


def _find_bare_names(data: dict[str, Any], place: Place, several: type[PluginRules] | None) -> Iterator[Place]:
    """Yield the plugins at a place that are given by their names alone: a text, or texts in a list."""
    node = _node_at(data, place)
    if isinstance(node, str):
        yield place
    if several is not None and isinstance(node, dict):
        place, node = (*place, several.key), node.get(several.key)
    for i, item in enumerate(node) if isinstance(node, list) else ():
        if isinstance(item, str):
            yield (*place, i)


def _node_at(data: Any, place: Place) -> Any:
    """Return what is at a place; None if there is nothing."""
    for key in place:
        if isinstance(data, dict):
            data = data.get(key)
        elif isinstance(data, list) and isinstance(key, int) and key < len(data):
            data = data[key]
        else:
            return None
    return data


# -- their texts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UserFile:
    """The text of a file of the user's, or of a module, as it was imported."""

    origin: Path
    text: bytes
    module: str = ""
    """The name of the module; empty for a file."""
    is_rows: bool = False
    """Whether it holds rows that Python code passed, and is gone when the run ends."""


def read_files(data: dict[str, Any], run: RunConfig) -> tuple[UserFile, ...]:
    """Return the files that a run names and those beside them that they import, then the modules that it names."""
    found: dict[Path, UserFile] = {}
    for use in (_node_at(data, place) for place in _find_uses(data)):
        if (split := split_file(use)) is not None:
            path = Path(split[0]).expanduser().resolve()
            found.setdefault(path, UserFile(path, text_of(import_place(use)) or b""))
    for file in tuple(found.values()):
        for path, text in _read_beside(file.origin.parent, file.text, {}).items():
            found.setdefault(path, UserFile(path, text))
    modules: dict[str, UserFile] = {}
    for _, kind, choice in run.plugins():
        if ":" in choice.use and split_file(choice.use) is None and not find_plugin(kind, choice.use).package:
            module = import_place(choice.use)
            if (own_text := text_of(module)) is not None:
                modules[module.__name__] = UserFile(Path(str(module.__file__)), own_text, module.__name__)
    return (*found.values(), *modules.values())


def _read_beside(folder: Path, text: bytes, found: dict[Path, bytes]) -> dict[Path, bytes]:
    """Add to `found` the Python files of a folder that a text in it imports, and those that these import."""
    for name in sorted(_imported_names(text)):
        for path in _files_of_module(name, folder):
            if path not in found:
                found[path] = path.read_bytes()
                _read_beside(folder, found[path], found)
    return found


def _imported_names(text: bytes) -> set[str]:
    """Return the first parts of the names of the modules that a text imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def _files_of_module(name: str, folder: Path) -> list[Path]:
    """Return the files of a module or package that lies in a folder; none if it comes from elsewhere."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        spec = None
    places = [*(spec.submodule_search_locations or ()), spec.origin or ""] if spec is not None else []
    inside = [Path(place) for place in places if Path(place).parent == folder and Path(place).exists()]
    return [path for place in inside for path in (sorted(place.rglob("*.py")) if place.is_dir() else [place])]


# -- the run's copies ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunFiles:
    """What a run folder keeps of its run file."""

    config: str
    """The text of config.yaml."""
    copies: Mapping[str, UserFile]
    """By the name in the folder `files/`."""

    def write_copies(self, folder: Path) -> None:
        """Write the copies that are not there yet, and where they come from."""
        kept = _read_origins(folder)
        for name, file in self.copies.items():
            path = folder / FILES / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.text)
            about = {"from": MEMORY if file.is_rows else str(file.origin), "sha256": _digest(file.text)}
            kept[name] = about | ({"module": file.module} if file.module else {})
        if self.copies:
            write_whole(folder / FILES / ORIGINS, json.dumps(kept, indent=2) + "\n")


def plan_copies(values: Resolved, files: tuple[UserFile, ...], folder: Path) -> RunFiles:
    """Say what the run in a folder keeps of a run file with these files."""
    kept, inside = _read_origins(folder), (folder / FILES).resolve()
    names: dict[Path, str] = {}
    copies: dict[str, UserFile] = {}
    prefixes: dict[Path, str] = {}
    rows = {str(inside / name): f"{FILES}/{name}" for name in _copies_of_rows(folder)}
    for file in files:
        if file.module:
            copies[f"{MODULES}/{file.module}.py"] = file
            continue
        origin = file.origin
        if origin.is_relative_to(inside):  # of this run, which goes on
            names[origin] = str(origin.relative_to(inside))
            continue
        there = [name for name, about in kept.items() if _is_copy(about, file)]
        if there:
            names[origin] = there[0]
            continue
        if origin.parent not in prefixes and not any(origin.is_relative_to(each) for each in prefixes):
            prefixes[origin.parent] = _free_prefix({*kept, *copies, *prefixes.values()})
        base = next(each for each in prefixes if origin.is_relative_to(each))
        names[origin] = f"{prefixes[base]}{origin.relative_to(base)}"
        copies[names[origin]] = file
        if file.is_rows:
            rows[str(origin)] = f"{FILES}/{names[origin]}"
    written = _name_copies(values, names)
    _replace_texts(written, rows)
    return RunFiles(dump_yaml(written), copies)


def changed_files(folder: Path) -> list[str]:
    """Return the files of the user's that have another text now than the copies in a run folder, or are gone."""
    changed = []
    for about in _read_origins(folder).values():
        path = Path(str(about.get("from")))
        if (
            not about.get("module")
            and str(path) != MEMORY
            and not (path.is_file() and _digest(path.read_bytes()) == about.get("sha256"))
        ):
            changed.append(str(path))
    return changed


def _free_prefix(taken: set[str]) -> str:
    """Return the folder in `files/` for the files of one more folder: none at first, then `2/`, `3/`."""
    used = {name.partition("/")[0] for name in taken if not name.startswith(f"{MODULES}/")}
    if not used:
        return ""
    return next(f"{number}/" for number in range(2, len(used) + 3) if str(number) not in used)


def _name_copies(values: Resolved, names: Mapping[Path, str]) -> dict[str, Any]:
    """Return the data of config.yaml, in which files have the names of their copies, relative to it."""
    written: dict[str, Any] = json.loads(json.dumps(values.file))
    for place in _find_uses(values.data):
        split, holder = split_file(_node_at(values.data, place)), _node_at(written, place[:-1])
        name = names.get(Path(split[0]).expanduser().resolve()) if split is not None else None
        if split is not None and name is not None and isinstance(holder, dict | list):
            holder[place[-1]] = join_file(f"{FILES}/{name}", split[1])  # type: ignore[index]
    return written


def _is_copy(about: Mapping[str, Any], file: UserFile) -> bool:
    """Return whether a copy that is there is of this file with this text."""
    return about.get("from") == str(file.origin) and about.get("sha256") == _digest(file.text)


def _copies_of_rows(folder: Path) -> list[str]:
    """Return the names of the copies in a run folder that hold rows which Python code passed."""
    return [name for name, about in _read_origins(folder).items() if about.get("from") == MEMORY]


def _replace_texts(node: Any, texts: Mapping[str, str]) -> None:
    """Replace whole texts in plain data, in place."""
    for key, item in list(node.items() if isinstance(node, dict) else enumerate(node)) if texts else ():
        if isinstance(item, str):
            node[key] = texts.get(item, item)
        elif isinstance(item, dict | list):
            _replace_texts(item, texts)


def _read_origins(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what is known of the copies in a run folder, by their names."""
    path = folder / FILES / ORIGINS
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
