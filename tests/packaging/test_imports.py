"""No module of the repository imports itself by way of others, and what finds imports and circles works."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.import_graph import circles, graph, imported


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles(graph()) == []


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
