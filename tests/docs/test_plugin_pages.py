"""The plugin author's pages: every suite of the conformance kit stands on the page of its kind, and their plugins pass
it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kit import run_kit
from support.fake_packages import write_package

from ale.specs.kinds import ALL_KINDS

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "plugins"
SUITES = sorted(file.stem for file in (ROOT / "libs" / "testing" / "src" / "ale_testing").glob("test_*.py"))


def kind_of(suite: str) -> str:
    """`test_sandbox_trees` -> `sandbox`; the longest name of a kind counts."""
    name = suite.removeprefix("test_")
    return max((kind for kind in (*ALL_KINDS, "driver") if f"{name}_".startswith(f"{kind}_")), key=len)


def test_every_suite_of_the_kit_stands_on_the_page_of_its_kind() -> None:
    found = [
        (page.stem, suite)
        for page in PAGES.glob("*.md")
        for suite in re.findall(r"^::: ale_testing\.(\w+)$", page.read_text(), re.MULTILINE)
    ]
    assert len(SUITES) > 10
    assert sorted(found) == sorted((kind_of(suite), suite) for suite in SUITES)


def test_every_kind_has_a_page() -> None:
    assert {*ALL_KINDS} <= {page.stem for page in PAGES.glob("*.md")}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [("algorithm", "Centered"), ("hooks", "Slow"), ("hooks", "Effort")])
def test_the_plugin_that_a_page_writes_keeps_its_contract(kind: str, name: str, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (PAGES / f"{kind}.md").read_text(), re.MULTILINE | re.DOTALL)
    (source,) = [block for block in blocks if f"class {name}(" in block]
    write_package(
        tmp_path,
        "from-the-page",
        source,
        name="page",
        kind=kind,
        target=f"from_the_page:{name}",
        manifest={"api_version": ">=1.0,<1.2", "plugins": [{"kind": kind, "name": "page", "summary": "Of a page."}]},
    )
    done = run_kit(tmp_path, f"{kind}:page", path=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "passed" in done.stdout
