"""The layout in CONTRIBUTING.md is that of the tree: every folder that it names exists, and every package is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ale_train

ROOT = Path(__file__).parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
LAYOUT = CONTRIBUTING.partition("## The layout\n```\n")[2].partition("\n```")[0].splitlines()
FLOORS = {"ale": ROOT / "core/src/ale", "ale_train": ROOT / "libs/train/src/ale_train"}


def named_folders() -> list[str]:
    """The folders that the layout names: those at the left edge, and the indented ones in the folder above them."""
    found, top = [], ""
    for line in LAYOUT:
        if not line.startswith(" "):
            top = line.split("/")[0]
            found.append(top)
        elif top == "plugins":
            found += [f"{top}/{name}" for name in line.split()]
        else:
            found.append(f"{top}/{line.split()[0]}")
    return found


def floors_of(package: str) -> list[set[str]]:
    """What the table of a package's floors names, the lowest floor first."""
    table = CONTRIBUTING.partition(f"| floor | `{package}` |")[2].partition("\n\n")[0]
    return [
        {name.strip("/") for name in re.findall(r"`([\w/]+)`", line.split("|")[2])} for line in table.splitlines()[2:]
    ]


def test_it_fits_on_one_screen() -> None:
    assert 20 <= len(LAYOUT) <= 40


def test_every_folder_that_it_names_exists_and_is_named_once() -> None:
    names = named_folders()
    assert [name for name in names if not (ROOT / name).is_dir()] == []
    assert len(names) == len({*names})


def test_every_package_is_named() -> None:
    packages = {str(file.parent.relative_to(ROOT)) for file in ROOT.glob("*/*/pyproject.toml")} | {"core"}
    assert packages - {*named_folders()} == set()


@pytest.mark.parametrize("package", FLOORS)
def test_the_table_of_floors_has_every_module(package: str) -> None:
    there = {path.stem for path in FLOORS[package].iterdir() if path.is_dir() or path.suffix == ".py"}
    assert set[str]().union(*floors_of(package)) == there - {"__init__", "__pycache__", "py"}


def test_the_floors_of_ale_train_are_those_of_its_docstring() -> None:
    """`tests/packaging/test_floors.py` holds the imports against that docstring."""
    table = re.findall(r"^    \d  (.+)$", ale_train.__doc__ or "", re.MULTILINE)
    assert floors_of("ale_train") == [set(line.split()) for line in table]


def test_the_page_of_packages_has_a_line_for_each() -> None:
    page = (ROOT / "docs" / "packages.md").read_text(encoding="utf-8")
    names = {
        re.search(r'^name = "(.+)"$', file.read_text(), re.MULTILINE)[1]  # type: ignore[index]
        for file in (ROOT / "core/pyproject.toml", *ROOT.glob("*/*/pyproject.toml"))
    }
    assert {*re.findall(r"^\| `(ale-[\w-]+)` \|", page, re.MULTILINE)} == names
