"""How the modules of this repository import each other, read with `ast`.

An import counts wherever it stands, in a function and under `if TYPE_CHECKING` too. The packages that a module lies in
are no edges of it by themselves: an `__init__.py` may import what lies below it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(p.parent for p in (*ROOT.glob("core/pyproject.toml"), *ROOT.glob("*/*/pyproject.toml")))


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
