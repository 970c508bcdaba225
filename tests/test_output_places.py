"""Every command that writes a file or a folder takes `--out`, and refuses a place where nothing can be made: in a
sentence, with exit code 2, before it leaves anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from support.command_line import ale, without_added_commands
from support.sample_trajectory import build_trajectory

from ale.cli import commands, main
from ale.store.run_store import RunStore
from ale_train.config.load import load_run_config

FILE = "tasks: {use: bash, families: [write]}\nengine: {use: scripted, answers: [hi]}\ntrainer: null\n"
QUESTIONS = """
name: mine
tasks: {use: jsonl, files: {heldout: rows.jsonl}, columns: {prompt: question, answer: answer}}
engine: {use: scripted, answers: ["4"]}
scaffold: chat
sandbox: none
reward: exact
trainer: null
"""
WRITE: dict[str, tuple[str, ...]] = {
    "run": ("FILE",),
    "eval": ("FILE",),
    "report": ("RUN",),
    "trace": ("RUN",),
    "compare": ("RUN", "RUN"),
    "plugins new": ("reward", "mine"),
    "endpoint serve": ("--upstream", "http://127.0.0.1:9", "--port", "0"),
    "tasks check": ("FILE", "--count", "1"),
    "tasks select": ("FILE", "--count", "1", "--attempts", "1"),
    "lab simulate": (),
    **{
        f"lab {experiment}": ("--quick",)
        for experiment in ("fig10", "fig12", "fig13", "compare", "parts", "staleness", "mismatch", "fig10-mismatch")
    },
}
"""Commands that write, with arguments that are right but for the place."""
ELSEWHERE = {
    "sandbox cp": "its last argument is the place",
    "sandbox bake": "an image",
    "sandbox image build": "an image",
    "engine install": "an environment of ALE's own",
    "engine remove": "an environment of ALE's own",
    "rock serve": "the database that --database names",
    "rock env register": "the service keeps it",
    "cluster scale": "a wish, in the run folder",
}
"""Commands that write something else, and what."""
READ = {
    *("doctor", "serve", "show", "plugins list", "plugins check", "plugins info"),
    *("config show", "config validate", "config describe", "config diff", "config schema"),
    *("cluster status", "endpoint relay", "engine list"),
    *("rock worker", "rock status", "rock logs", "rock warm", "rock shell", "rock forward"),
    *("rock env list", "rock env get", "rock env versions", "rock env delete"),
    *("sandbox ls", "sandbox rm", "sandbox prune", "sandbox exec", "sandbox shell", "sandbox logs"),
}
"""Commands that write no file of the user's."""


def every_command() -> dict[str, list[str]]:
    """The options of each command of all installed packages."""
    with without_added_commands():
        for entry in sorted(commands._installed_commands(), key=lambda entry: entry.name.count(".")):
            commands._add(main.app, main.GROUPS, entry)
        return dict(_walk(typer.main.get_command(main.app), []))


def _walk(command: Any, names: list[str]) -> Iterator[tuple[str, list[str]]]:
    if (inner := getattr(command, "commands", None)) is None:
        yield " ".join(names), [option for parameter in command.params for option in parameter.opts]
        return
    for name, each in inner.items():
        yield from _walk(each, [*names, name])


def test_every_command_that_writes_a_file_or_a_folder_takes_out() -> None:
    found = every_command()
    assert set(found) == {*WRITE, *ELSEWHERE, *READ}, "say of a new command whether it writes a file or a folder"
    assert {name for name, options in found.items() if "--out" in options} == set(WRITE)
    names = {option for options in found.values() for option in options}
    assert not names & {"--output", "--output-dir", "--out-dir", "--into", "--outdir", "--dest", "--target"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run file, and a run folder with an evaluation."""
    at = tmp_path_factory.mktemp("places")
    (at / "FILE").write_text(FILE)
    with RunStore.create(at / "RUN") as store:
        store.add_trajectory(build_trajectory("e", 1.0, stage="eval", step=0))
        store.add_metrics("eval", 0, {"success": 1.0, "episodes": 1})
    (at / "file").write_text("mine")
    return at


def tree(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in sorted(folder.rglob("*")) if not path.name.startswith("run.db-")}


def refused(folder: Path, name: str, out: str) -> str:
    """Run a command with this place; return its sentence."""
    given = [str(folder / word) if word in ("FILE", "RUN") else word for word in WRITE[name]]
    before = tree(folder)
    done = ale(*name.split(), *given, "--out", out, cwd=folder)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert tree(folder) == before
    return done.stderr


@pytest.mark.parametrize("name", [name for name in WRITE if not name.startswith("lab fig")])
def test_a_place_where_nothing_can_be_made_is_refused(name: str, folder: Path) -> None:
    for out, reason in (
        (folder / "file" / "new.x", "Not a directory"),
        (Path("/proc/nothing/new.x"), "No such file or directory"),
        (folder / ("n" * 300), "File name too long"),
    ):
        sentence = refused(folder, name, str(out))
        if name == "plugins new":  # it writes into a folder that is there
            assert sentence.startswith("error: There is no folder ")
        else:
            assert re.match(r"error: The .* cannot be (made|written|written to): ", sentence)
            assert reason in sentence


@pytest.mark.parametrize("name", WRITE)
def test_an_empty_place_is_refused(name: str, folder: Path) -> None:
    """As from `--out "$UNSET"`: else the current folder would be written to."""
    assert "Invalid value for '--out': it is empty" in refused(folder, name, "")


@pytest.mark.parametrize("target", ["file/copy", "/proc/nothing/copy", "n" * 300, "nowhere/copy"])
def test_a_copy_out_of_a_sandbox_to_a_bad_place_is_refused_before_the_sandbox_is_asked(
    target: str, folder: Path
) -> None:
    before = tree(folder)
    done = ale("sandbox", "cp", "no-such-sandbox:/etc/hosts", target, cwd=folder)
    assert done.returncode == 2
    assert done.stderr.startswith(("error: There is no folder ", "error: The copy "))
    assert tree(folder) == before
    assert ale("sandbox", "cp", target, "no-such-sandbox:/x", cwd=folder).returncode == 2


def test_an_engine_is_not_installed_where_nothing_can_be_made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tree(folder)
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "file"))
    done = ale("engine", "install", "vllm", cwd=folder)
    assert done.returncode == 2
    assert re.match(r"error: The folder of engines \(below XDG_DATA_HOME\) .* cannot be made: Not a dir", done.stderr)
    assert tree(folder) == before


def test_validate_sees_a_folder_of_runs_that_cannot_be_made(folder: Path) -> None:
    for run_dir in ("file/runs", "/proc/nothing"):
        before = tree(folder)
        done = ale("config", "validate", "FILE", f"run_dir={run_dir}", cwd=folder)
        assert done.returncode == 2
        assert f"error: The folder of runs (run_dir) {run_dir} cannot be made: " in done.stderr
        assert tree(folder) == before
    assert ale("config", "validate", "FILE", "run_dir=new/runs", cwd=folder).returncode == 0
    assert not (folder / "new").exists()


def test_a_tilde_is_the_home_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert load_run_config(folder / "FILE", ["run_dir=~/runs"]).run.run_dir == folder / "runs"
    assert "cannot be made: Not a directory" in refused(folder, "report", "~/file/page.html")


def test_an_evaluation_and_a_comparison_are_named_as_such(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "2 + 2?", "answer": "4"}\n')
    (tmp_path / "run.yaml").write_text(QUESTIONS)
    for _ in range(2):
        done = ale("eval", "run.yaml", "--episodes", "1", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    runs = sorted((tmp_path / "runs").iterdir())
    assert all(re.fullmatch(r"eval-mine-\d{8}-\d{6}-\w{4}", run.name) for run in runs)
    again = ale("eval", runs[0] / "config.yaml", "--episodes", "1", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    (third,) = {*(tmp_path / "runs").iterdir()} - {*runs}
    assert third.name.startswith("eval-mine-")
    compared = ale("compare", *runs, cwd=tmp_path)
    assert re.search(r"/runs/compare-\d{8}-\d{6}/compare\.html$", compared.stdout.strip()), compared.stderr
