"""How modules import each other, read with `ast`: no circles, nothing upwards between the core's floors, and no plugin
that imports another one.

An import counts wherever it stands, in a function and under `if TYPE_CHECKING` too. The packages that a module lies in
are no edges of it by themselves: an `__init__.py` may import what lies below it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(p.parent for p in (*ROOT.glob("core/pyproject.toml"), *ROOT.glob("*/*/pyproject.toml")))
FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"task", "trajectory", "messages", "errors"}),
    frozenset({"specs"}),
    frozenset({"registry"}),
    frozenset({"config"}),
    frozenset({"store"}),
    frozenset({"session"}),
    frozenset({"rollout"}),
    frozenset({"cli"}),
)
"""The table of floors, the lowest first: what lies at the top of `ale/`."""


@cache
def modules() -> dict[str, Path]:
    """Every module of every package of the repository, by its name."""
    found: dict[str, Path] = {}
    for source in (package / "src" for package in PACKAGES):
        for path in source.rglob("*.py"):
            parts = path.relative_to(source).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def package_of(module: str) -> Path:
    """The folder of the package (with a pyproject.toml) that a module belongs to."""
    path = modules()[module]
    return next(package for package in PACKAGES if path.is_relative_to(package))


def imported(module: str, source: str, known: dict[str, Path]) -> Iterator[str]:
    """The modules, among those that are known, that a module's source imports."""
    above = module.split(".") if known[module].name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        if not isinstance(node, ast.ImportFrom):
            continue
        base = above[: len(above) - node.level + 1] if node.level else []
        start = ".".join([*base, *([node.module] if node.module else [])])
        for alias in node.names:
            below = f"{start}.{alias.name}"
            if below in known:
                yield below
            elif start in known:
                yield start


@cache
def graph() -> dict[str, frozenset[str]]:
    """What each module of the repository imports of the repository's modules."""
    known = modules()
    return {name: frozenset(imported(name, path.read_text(), known)) for name, path in known.items()}


def circles(edges: dict[str, frozenset[str]]) -> list[list[str]]:
    """The groups of modules that reach each other (Tarjan's strongly connected components), and those that import
    themselves."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(edges[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            group = stack[at:]
            del stack[at:]
            if len(group) > 1 or node in edges[node]:
                found.append(sorted(group))

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return found


def floor_of(module: str) -> int | None:
    """The number of a core module's floor; None for `ale` itself."""
    top = module.split(".")[1] if "." in module else ""
    return next((number for number, names in enumerate(FLOORS) if top in names), None)


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles(graph()) == []


def test_the_listing_of_the_core_is_the_table_of_floors() -> None:
    top = {p.stem for p in (ROOT / "core/src/ale").iterdir() if p.is_dir() or p.suffix == ".py"}
    assert top - {"__init__", "__pycache__", "py"} == frozenset().union(*FLOORS)


def test_no_module_of_the_core_imports_from_a_floor_above_its_own() -> None:
    upwards = [
        f"{module} imports {other}"
        for module, others in sorted(graph().items())
        for other in sorted(others)
        if module.startswith("ale.") and other.startswith("ale.")
        if (own := floor_of(module)) is not None and (its := floor_of(other)) is not None and its > own
    ]
    assert upwards == []


def test_the_core_imports_no_other_package() -> None:
    core = ROOT / "core"
    strangers = [
        f"{module} imports {other}"
        for module, others in sorted(graph().items())
        for other in sorted(others)
        if package_of(module) == core and package_of(other) != core
    ]
    assert strangers == []


def test_no_plugin_imports_another_plugin() -> None:
    plugins = ROOT / "plugins"
    across = [
        f"{module} imports {other}"
        for module, others in sorted(graph().items())
        for other in sorted(others)
        if package_of(module).parent == plugins == package_of(other).parent and package_of(module) != package_of(other)
    ]
    assert across == []


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("import b", {"b"}),
        ("import b.c as x", {"b.c"}),
        ("from b import c", {"b.c"}),
        ("from b import name", {"b"}),
        ("from b.c import name", {"b.c"}),
        ("from . import c", {"b.c"}),
        ("from .c import name", {"b.c"}),
        ("def f():\n    from b import c", {"b.c"}),
        (
            "class A:\n    async def f(self):\n        with x:\n            import b.c",
            {"b.c"},
        ),
        ("if TYPE_CHECKING:\n    import b.c", {"b.c"}),
        ("if 1:\n    import b", {"b"}),
        ("import json, os.path", set()),
    ],
)
def test_an_import_is_seen_wherever_it_stands(statement: str, found: set[str]) -> None:
    known = {"b": Path("b/__init__.py"), "b.a": Path("b/a.py"), "b.c": Path("b/c.py")}
    assert set(imported("b.a", statement, known)) == found


def test_circles_are_found() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a", "e"}, "e": set(), "f": {"f"}}
    assert circles({name: frozenset(others) for name, others in edges.items()}) == [["a", "b", "c"], ["f"]]
