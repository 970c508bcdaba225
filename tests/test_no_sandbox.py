"""Runs in which nobody uses a sandbox, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ale_command import ale

RUN = """
tasks: {use: jsonl, path: questions.jsonl, columns: {prompt: question, answer: answer}}
scaffold: chat
reward: exact
engine: {use: scripted, answers: ["4"]}
trainer: null
eval: {episodes: 2}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [{"question": f"{i} + 2 =", "answer": str(i + 2)} for i in range(30)]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run.yaml").write_text(RUN)
    return tmp_path


@pytest.mark.parametrize("word", ["none", "null", "{use: none}"])
def test_a_run_may_say_that_it_has_no_sandbox(folder: Path, word: str) -> None:
    done = ale("run", "run.yaml", f"sandbox={word}", cwd=folder)
    assert (done.returncode, done.stderr.count("error")) == (0, 0), done.stderr
    summary = json.loads(Path(folder, done.stdout.splitlines()[-1]).read_text())
    assert (summary["status"], summary["failures"], summary["sandboxes"]) == ("completed", {}, {})


def test_no_sandbox_is_started_where_nobody_uses_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))  # the default sandbox is local, which is refused without bubblewrap
    done = ale("run", "run.yaml", cwd=folder)
    assert done.returncode == 0, done.stderr
    refused = ale("run", "run.yaml", "tasks=bash", "scaffold=iflow", "reward=tests", cwd=folder)
    assert "bubblewrap" in refused.stderr, "this shows that the test would notice"


@pytest.mark.parametrize(
    ("change", "who"),
    [("scaffold=iflow", "the scaffold plugin 'iflow'"), ("reward=tests", "the reward plugin 'tests'")],
)
def test_who_needs_a_sandbox_is_refused_without_one(folder: Path, change: str, who: str) -> None:
    done = ale("run", "run.yaml", "sandbox=none", change, cwd=folder)
    assert done.returncode == 2
    said = f"error: sandbox: the run has none ('sandbox: none'), and {who} needs one; name one, such as local."
    assert done.stderr.strip() == said
