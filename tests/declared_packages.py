"""This module reads what each package of this repository declares, and so what its tests may import and need installed.

1. A package's tests may use its *closure*: its dependencies, those of its extra `test`, and theirs in turn.
2. The dependencies of our own packages are read from their pyproject.toml, so that installations need not be up to
   date; those of third parties are read from the installed packages.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Package:
    """One of our packages."""

    name: str
    folder: Path
    requirements: tuple[str, ...]
    extras: dict[str, list[str]]

    @property
    def tests(self) -> Path:
        """The folder of its tests, which may be missing."""
        return self.folder / "tests"

    @property
    def modules(self) -> set[str]:
        """The names that can be imported where it is installed."""
        return {path.stem for path in (self.folder / "src").iterdir() if path.name != "__pycache__"}


@cache
def our_packages() -> dict[str, Package]:
    """Our packages by their names, the core first."""
    found = {}
    for file in [ROOT / "core/pyproject.toml", *sorted(ROOT.glob("libs/*/pyproject.toml")), *plugin_files()]:
        about = tomllib.loads(file.read_text())["project"]
        extras = about.get("optional-dependencies", {})
        found[about["name"]] = Package(about["name"], file.parent, tuple(about.get("dependencies", ())), extras)
    return found


def plugin_files() -> list[Path]:
    """The pyproject.toml of each plugin."""
    return sorted(ROOT.glob("plugins/*/pyproject.toml"))


def closure(name: str, extra: str = "test") -> set[str]:
    """The names of all packages that are installed with a package and one of its extras, itself among them."""
    found: set[tuple[str, str]] = set()
    left = {(name, ""), (name, extra)}
    while left:
        found |= left
        left = {needed for each in left for needed in declared(*each)} - found
    return {each for each, _ in found}


@cache
def declared(name: str, extra: str) -> frozenset[tuple[str, str]]:
    """What a package declares for itself, or for one of its extras: names, each with every extra that is asked for."""
    needed = (Requirement(text) for text in declared_lines(name, extra))
    wanted = [each for each in needed if each.marker is None or each.marker.evaluate({"extra": extra})]
    return frozenset((canonicalize_name(each.name), more) for each in wanted for more in ("", *each.extras))


def declared_lines(name: str, extra: str) -> Iterator[str]:
    """The requirements as they are written; nothing for a third party's package that is not installed here."""
    package = our_packages().get(name)
    if package is not None:
        yield from package.extras.get(extra, ()) if extra else package.requirements
        return
    try:
        yield from distribution(name).requires or ()
    except PackageNotFoundError:
        return
