"""Which part of the repository may import which: the core and `ale_train` are built in floors, libraries know no
plugin, and plugins know no other plugin.

A file imports from its own floor or from one below, wherever the import stands, also under `if TYPE_CHECKING`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.import_graph import ROOT, circles, graph, package_of

import ale_train

Floors = Sequence[frozenset[str]]
"""What lies at the top of a package, by floors, the lowest first."""

CORE: Floors = (
    frozenset({"task", "trajectory", "messages", "errors"}),
    frozenset({"specs"}),
    frozenset({"registry"}),
    frozenset({"config"}),
    frozenset({"store"}),
    frozenset({"session"}),
    frozenset({"rollout"}),
    frozenset({"cli"}),
)
TRAIN: Floors = tuple(
    frozenset(line.split()) for line in re.findall(r"^    \d  (.+)$", ale_train.__doc__ or "", re.MULTILINE)
)
"""The table in the docstring of `ale_train`."""
BUILT: dict[str, tuple[Path, Floors]] = {
    "ale": (ROOT / "core/src/ale", CORE),
    "ale_train": (ROOT / "libs/train/src/ale_train", TRAIN),
}


def floor_of(module: str, floors: Floors) -> int | None:
    """The number of a module's floor; None for the package itself."""
    top = module.split(".")[1] if "." in module else ""
    return next((number for number, names in enumerate(floors, 1) if top in names), None)


def climbs(package: str, floors: Floors, edges: dict[str, frozenset[str]]) -> list[str]:
    """The imports from a floor above the importing module's own, as sentences."""
    return [
        f"{module} (floor {own}) imports {other} (floor {its})"
        for module, others in sorted(edges.items())
        for other in sorted(others)
        if module.startswith(f"{package}.") and other.startswith(f"{package}.")
        if (own := floor_of(module, floors)) is not None and (its := floor_of(other, floors)) is not None and its > own
    ]


def between(allowed: Callable[[Path, Path], bool]) -> list[str]:
    """The imports of a module of another package that are not allowed, as sentences; the packages are folders."""
    return [
        f"{module} imports {other}"
        for module, others in sorted(graph().items())
        for other in sorted(others)
        if package_of(module) != package_of(other) and not allowed(package_of(module), package_of(other))
    ]


@pytest.mark.parametrize("package", BUILT)
def test_each_part_of_a_package_is_in_its_table_of_floors(package: str) -> None:
    folder, floors = BUILT[package]
    top = {p.stem for p in folder.iterdir() if p.is_dir() or p.suffix == ".py"} - {"__init__", "__pycache__", "py"}
    assert top == frozenset().union(*floors)
    assert sum(map(len, floors)) == len(top), "a part has one floor"


@pytest.mark.parametrize("package", BUILT)
def test_no_module_imports_from_a_floor_above_its_own(package: str) -> None:
    assert climbs(package, BUILT[package][1], graph()) == []


@pytest.mark.parametrize("package", BUILT)
def test_the_folders_of_a_package_do_not_import_each_other_in_a_circle(package: str) -> None:
    def part_of(module: str) -> str:
        return ".".join(module.split(".")[:2])

    edges: dict[str, set[str]] = {}
    for module, others in graph().items():
        if module.startswith(f"{package}."):
            own = edges.setdefault(part_of(module), set())
            own |= {part_of(other) for other in others if other.startswith(f"{package}.")} - {part_of(module)}
    assert circles({part: frozenset(others) for part, others in edges.items()}) == []


def test_the_core_knows_no_training_no_torch_and_no_cluster() -> None:
    strangers = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted((ROOT / "core/src").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""])
        if re.match(r"(torch|ray|ale_\w+)(\.|$)", name)
    ]
    assert strangers == []


def test_libraries_import_no_plugin() -> None:
    assert between(lambda own, other: not (own.parent.name == "libs" and other.parent.name == "plugins")) == []


def test_no_plugin_imports_another_plugin() -> None:
    assert between(lambda own, other: not own.parent.name == other.parent.name == "plugins") == []


def test_an_import_from_a_higher_floor_is_found() -> None:
    floors = (frozenset({"low"}), frozenset({"high"}))
    edges = {"a.low.x": frozenset({"a.high", "a.low.y"}), "a.high": frozenset({"a.low.x"}), "b": frozenset({"a.high"})}
    assert climbs("a", floors, edges) == ["a.low.x (floor 1) imports a.high (floor 2)"]
