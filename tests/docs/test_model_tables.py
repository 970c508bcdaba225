"""The tables of models on the pages of engines and trainers are what the tests of each engine and trainer find."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ale_testing.model_shapes import REFUSED, SHAPES

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "columns"), [("engines", ("torch", "vllm", "sglang")), ("trainers", ("torch", "megatron"))]
)
def test_a_table_says_of_each_model_who_takes_it(page: str, columns: tuple[str, ...]) -> None:
    head = f"| model | {' | '.join(f'`{name}`' for name in columns)} |"
    table = (DOCS / f"{page}.md").read_text(encoding="utf-8").partition(head)[2].partition("\n\n")[0]
    said = {}
    for row in table.splitlines()[2:]:
        first, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        said |= {name: cells for name in re.findall("`([^`]+)`", first)}
    assert said.keys() == SHAPES.keys()
    for at, column in enumerate(columns):
        refused = {name for name, cells in said.items() if cells[at].startswith("refused")}
        assert refused == set(REFUSED.get(column, ())), column
        assert all(cells[at].startswith(("refused", "yes")) for cells in said.values())
