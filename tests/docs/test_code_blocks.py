"""The code in the documents: python runs, yaml is a valid run file (or a part of one), bash runs.

A block that cannot run here has a comment before it: `<!-- not run: why -->`. Blocks of other languages are text.
A block with the comment `<!-- file: NAME -->` is the content of a file that lies beside the page's run files.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt
from support import forked_command

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "core" / "README.md",
    *sorted((ROOT / "libs").glob("*/README.md")),
    *sorted((ROOT / "plugins").glob("*/README.md")),
]
BASE = {"tasks": "bash", "engine": {"use": "scripted", "answers": ["x"]}, "trainer": None}
LONG = (ROOT / "docs" / "data_and_rewards.md", ROOT / "docs" / "environments.md")
"""Pages that train policies; each has a file of its own, so that they run side by side."""
OWN_TEST = (ROOT / "docs" / "use_your_model.md",)
"""Pages whose code runs after a run, in a file of tests of their own."""


@dataclass(frozen=True)
class Block:
    """A fenced block: where it stands, its info string, its text, why it is not run, and which file it is."""

    page: Path
    line: int
    info: str
    text: str
    excuse: str
    file: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        excuse = file = ""
        for token in MarkdownIt().parse(page.read_text()):
            shape = r"<!-- (not run|file): (.+) -->\s*"
            comment = re.fullmatch(shape, token.content) if token.type == "html_block" else None
            if comment and comment[1] == "file":
                file = comment[2]
            elif comment:
                excuse = comment[2]
            elif token.type == "fence":
                line = (token.map or [0])[0] + 1
                found.append(Block(page, line, token.info.strip(), token.content, excuse, file))
                excuse = file = ""
    return found


BLOCKS = blocks()


def of(*infos: str) -> list[Block]:
    return [block for block in BLOCKS if block.info in infos and not block.excuse and block.page not in OWN_TEST]


def write_files(page: Path, folder: Path) -> None:
    """Write the files that a page shows whole, as its reader does."""
    for block in BLOCKS:
        if block.page == page and block.file:
            (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.file).write_text(block.text)


def test_there_are_blocks_of_each_language_and_few_excuses() -> None:
    assert len(of("python")) >= 4
    assert len(of("yaml")) >= 10
    assert len(of("bash")) >= 2
    assert sum(bool(block.excuse) for block in BLOCKS) <= 12, "an excuse is for what cannot run here"


@pytest.mark.parametrize("block", of("python"), ids=str)
def test_python_runs(block: Block, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", block.text], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", of("yaml"), ids=str)
def test_yaml_is_valid_in_a_run_file(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ale_train.config.load import load_run_config

    monkeypatch.chdir(tmp_path)
    write_files(block.page, tmp_path)
    data = yaml.safe_load(block.text)
    (tmp_path / "part.yaml").write_text(yaml.safe_dump({**BASE, **data} if "model" not in data else data))
    load_run_config(tmp_path / "part.yaml")


@pytest.mark.parametrize("page", sorted({*PAGES} - {*LONG}), ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_run_one_after_the_other(page: Path, tmp_path: Path) -> None:
    run_commands(page, tmp_path)


def run_commands(page: Path, tmp_path: Path, shorter: dict[str, str] | None = None) -> None:
    """Run the page's commands in a folder with the page's files; those in `shorter` with these overrides."""
    programs = (forked_command.program().parent, Path(sys.executable).parent)  # `ale`, then `python`
    path = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
    write_files(page, tmp_path)
    for block in of("bash"):
        if block.page == page:
            text = block.text
            for command, overrides in (shorter or {}).items():
                text = text.replace(command, f"{command} {overrides}")
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", text],
                cwd=tmp_path,
                env={**os.environ, "PATH": path},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page: Path) -> None:
    for token in MarkdownIt().parse(page.read_text()):
        for child in token.children or ():
            target = str(child.attrs.get("href") or child.attrs.get("src") or "")
            if target and not re.match(r"[a-z]+:|#", target):
                assert (page.parent / target.partition("#")[0]).exists(), f"{page}: {target}"


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "```" not in (tmp_path / "site" / "plugins" / "index.html").read_text(), "a fence that was not understood"
    html = (tmp_path / "site" / "plugins" / "sandbox" / "index.html").read_text()
    for word in ("start_sandbox", "max_output_bytes", "kill_agent_processes", "SandboxSpec", "from_snapshot"):
        assert word in html, "the contract's page is made from the contract"
    tasks = (tmp_path / "site" / "plugins" / "data" / "index.html").read_text()
    assert "CPU cores; fractions are allowed." in tasks, "a pydantic field has its description"
    assert ">test_a_dead_sandbox_never_scores_zero<" in (tmp_path / "site/plugins/reward/index.html").read_text()
    fetched = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"', html)
    assert [url for url in fetched if "canonical" not in url] == [], "a page fetches nothing from elsewhere"
