"""These tests use the command line as a user does: they check its output and the exit code for each kind of mistake."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.command_line import ale

from ale.errors import PluginError, SandboxError
from ale.registry.installed import list_plugins
from ale_train.commands import evaluate_command
from ale_train.config.load import LoadedConfig

ALE = Path(sys.executable).with_name("ale")
MINIMAL = "tasks: bash\nengine: {use: scripted, random: true}\ntrainer: null\n"
# pydantic is missing here: typer itself loads it.
HEAVY = ("torch", "ray", "transformers", "stevedore", "omegaconf", "rich", "numpy", "pluggy", "yaml")


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    (tmp_path / "run.yaml").write_text(MINIMAL)
    return tmp_path / "run.yaml"


def write_package(folder: Path, module: str, source: str, group: str, name: str, target: str) -> None:
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (folder / f"{module}.py").write_text(source)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {target}\n")


def test_help_names_every_command() -> None:
    done = ale("--help")
    assert done.returncode == 0
    for command in ("run", "eval", "report", "plugins", "config", "endpoint", "sandbox", "tasks", "lab"):
        assert f"  {command} " in done.stdout
    assert ale("--version").stdout.strip()


def test_plugins_are_listed_as_a_table_and_as_json() -> None:
    table = ale("plugins", "list").stdout.splitlines()
    assert table[0].split() == ["KIND", "NAME", "PACKAGE", "VERSION", "STATUS", "SUMMARY"]
    found = json.loads(ale("plugins", "list", "--json").stdout)
    assert len(found) == len(table) - 1
    keys = {
        "kind",
        "name",
        "package",
        "version",
        "api_version",
        "status",
        "reason",
        "summary",
        "capabilities",
        "target",
    }
    assert set(found[0]) == keys
    kinds = {info["kind"] for info in json.loads(ale("plugins", "list", "--kind", "sandbox", "--json").stdout)}
    assert kinds == {"sandbox"}


def test_help_imports_little_more_than_typer() -> None:
    more = (
        "asyncio",
        "pydantic",
        "jinja2",
        "aiohttp",
        "fastapi",
        "sqlite3",
        "ale.registry.drivers",
        "ale.store.run_store",
    )
    code = (
        "import sys, typer\nbefore = set(sys.modules)\nsys.argv = ['ale', '--help']\nfrom ale.cli.main import main\n"
        f"try: main()\nfinally: print('MORE', [m for m in {more} if m in set(sys.modules) - before])"
    )
    done = python(code)
    assert done.stdout.splitlines()[-1] == "MORE []", done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["plugins", "list"], ["run", "--help"], ["--version"]])
def test_commands_that_help_out_of_trouble_import_nothing_heavy(arguments: list[str]) -> None:
    code = (
        f"import sys\nsys.argv = ['ale', *{arguments}]\nfrom ale.cli.main import main\n"
        f"try: main()\nfinally: print('HEAVY', [m for m in {HEAVY} if m in sys.modules])"
    )
    done = python(code)
    assert done.stdout.splitlines()[-1] == "HEAVY []", done.stderr


def test_show_prints_a_run_file_that_is_valid(run_file: Path, tmp_path: Path) -> None:
    shown = ale("config", "show", str(run_file), "rl.steps=3")
    assert yaml.safe_load(shown.stdout)["rl"] == {"steps": 3}
    (tmp_path / "shown.yaml").write_text(shown.stdout)
    done = ale("config", "validate", str(tmp_path / "shown.yaml"), "--only", "rollout")
    assert done.returncode == 0
    assert done.stdout == f"tasks: 8192 train\n{tmp_path / 'shown.yaml'} is valid.\n"


@pytest.mark.parametrize("section", ["model", "needs", "rollout", "session", "pool", "cpt", "sft", "rl", "eval"])
def test_describe_tells_every_key_of_a_section(section: str) -> None:
    of_run = [line for line in ale("config", "describe").stdout.splitlines() if line.startswith(f"{section}.")]
    shown = ale("config", "describe", section).stdout.splitlines()
    assert [line.split()[0] for line in shown[1:]] == [line.split()[0] for line in of_run]
    assert of_run


def test_describe_tells_every_key_of_the_run_and_of_a_plugin() -> None:
    run = ale("config", "describe").stdout
    for key in ("rl.steps", "sft.demonstrations.count", "needs.resources.memory_mib", "tasks"):
        assert f"\n{key} " in run
    assert "isolation" in ale("config", "describe", "sandbox", "local").stdout


@pytest.mark.parametrize(
    "kind", ["tasks", "scaffold", "sandbox", "reward", "engine", "trainer", "algorithm", "cluster"]
)
def test_describe_of_a_section_that_names_a_plugin_lists_those_that_are_installed(kind: str) -> None:
    lines = ale("config", "describe", kind).stdout.splitlines()
    assert lines[0].split() == ["KEY", "TYPE", "DEFAULT", "MEANING"]
    assert lines[1].split()[:2] == [kind, "plugin"]
    head = next(i for i, line in enumerate(lines) if line.startswith(f"{kind.upper()} PLUGIN "))
    assert [line.split()[0] for line in lines[head + 1 :]] == sorted({info.name for info in list_plugins(kind)})
    assert lines[head - 1] == f"Installed; `ale config describe {kind} NAME` lists the keys of one:"


def test_describe_knows_observers_keys_and_named_sets_as_a_run_file_writes_them() -> None:
    assert "tensorboard " in ale("config", "describe", "observers").stdout
    assert ale("config", "describe", "observers", "report").stdout == "It has no settings.\n"
    assert ale("config", "describe", "rl", "steps").stdout == ale("config", "describe", "rl.steps").stdout
    assert ale("config", "describe", "run_dir").stdout.splitlines()[1].startswith("run_dir ")
    sets = ale("config", "describe", "eval.sets").stdout
    assert re.search(r"^eval\.sets\.NAME\.split +str +eval\.split ", sets, re.M)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "nofile.yaml"], "error: There is no run file nofile.yaml."),
        (["eval", "nofile.yaml"], "error: There is no run file nofile.yaml."),
        (["config", "validate", "nofile.yaml"], "error: There is no run file nofile.yaml."),
        (["config", "show", "."], "error: . is a folder, not a run file."),
        (["run", "run.yaml", "rl.stepz=1"], "error: rl.stepz: there is no such key. Did you mean 'steps'?"),
        (
            ["run", "run.yaml", "algorithm.experts={}", "rl={steps: 1, resample_even_groups: 2}"],
            "resample_even_groups takes away the groups by which experts are judged",
        ),
        (["run", "run.yaml", "rl.steps"], "error: The override 'rl.steps' must look like key=value"),
        (["config", "describe", "sandbx"], "error: A run file has no section or key 'sandbx'. Did you mean 'sandbox'?"),
        (["config", "describe", "rl", "stepz"], "error: A run file has no section or key 'rl.stepz'."),
        (["config", "describe", "sandbox", "lokal"], "error: sandbox: there is no sandbox plugin 'lokal'."),
        (["plugins", "list", "--kind", "x"], "error: There is no kind of plugin 'x'."),
        (["rnu"], "No such command 'rnu'."),
        (["plugins"], ""),
        (["run"], "Missing argument"),
        (["run", "run.yaml", "--no-such-option"], "No such option"),
    ],
)
def test_a_mistake_is_a_sentence_and_exit_code_2(run_file: Path, arguments: list[str], sentence: str) -> None:
    done = ale(*arguments, cwd=run_file.parent)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert [p.name for p in run_file.parent.iterdir()] == ["run.yaml"], "nothing was begun"


def test_a_folder_that_holds_a_run_is_not_written_to(run_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "held"
    folder.mkdir()
    (folder / "run.db").write_bytes(b"another run")
    done = ale("run", str(run_file), "--out", str(folder))
    assert done.returncode == 2
    assert f"error: {folder} holds a run already; go on with it (--resume), give another --out" in done.stderr
    assert [path.name for path in folder.iterdir()] == ["run.db"]


def test_each_mistake_has_a_line_of_its_own(run_file: Path) -> None:
    done = ale("config", "validate", str(run_file), "sede=1", "sandbox.x=1", "reward=r")
    assert [line.split(":")[:2] for line in done.stderr.splitlines()] == [
        ["error", " sandbox.x"],
        ["error", " reward"],
        ["error", " sede"],
    ]


def test_debug_adds_the_traceback_and_keeps_the_exit_code() -> None:
    done = ale("--debug", "config", "show", "nofile.yaml")
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1] == "error: There is no run file nofile.yaml."


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (SandboxError("It broke."), 1, "error: It broke."),
        (PluginError("It is old."), 2, "error: It is old."),
        (ZeroDivisionError("a fault in the code"), 1, "ZeroDivisionError: a fault in the code"),
    ],
)
def test_an_error_gives_its_exit_code(
    error: BaseException, code: int, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def show(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("ale.cli.plugins_command.show", show)
    done = ale("plugins", "list")
    assert done.returncode == code
    assert done.stderr.splitlines()[-1] == line
    assert ("Traceback" in done.stderr) == isinstance(error, ZeroDivisionError)


def test_a_broken_pipe_is_silent() -> None:
    source = (
        "import sys, ale.cli.main, ale.cli.plugins_command\n"
        "def show(*arguments): raise BrokenPipeError\n"
        "ale.cli.plugins_command.show = show\nsys.argv = ['ale', 'plugins', 'list']\nale.cli.main.main()"
    )
    done = python(source)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    process = subprocess.Popen([ALE, "config", "describe"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(60) in (0, 1)


def test_a_plugin_that_breaks_on_import_breaks_only_the_run_that_names_it(run_file: Path, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    write_package(packages, "far_away", "raise SystemExit(9)", "ale.reward", "fixed", "far_away:Fixed")
    write_package(packages, "watcher", "raise SystemExit(8)", "ale.hooks", "watch", "watcher")
    assert "far_away" in ale("plugins", "list", path=packages).stdout
    assert ale("config", "validate", str(run_file), path=packages).returncode == 0
    done = ale("config", "validate", str(run_file), "reward=fixed", path=packages)
    assert done.returncode == 2
    assert "error: reward: the reward plugin 'fixed' of far_away 1.0 cannot be imported: SystemExit: 9." in done.stderr


def test_a_package_without_a_summary_is_listed_whoever_reads_metadata(tmp_path: Path) -> None:
    import importlib_metadata  # noqa: F401  # it takes the place of Python's own reader, for the whole process

    write_package(tmp_path, "far_away", "x = 1", "ale.reward", "fixed", "far_away:Fixed")
    assert "far_away" in ale("plugins", "list", path=tmp_path).stdout


def test_a_package_may_add_commands(tmp_path: Path) -> None:
    source = "def greet(name: str) -> None:\n    \"Say hello.\"\n    print('hello', name)\n"
    write_package(tmp_path, "greeter", source, "ale.commands", "greet", "greeter:greet")
    done = ale("greet", "you", path=tmp_path)
    assert (done.returncode, done.stdout) == (0, "hello you\n")


def test_an_unknown_command_says_where_commands_come_from() -> None:
    done = ale("nosuch")
    assert done.returncode == 2
    assert "No such command 'nosuch'" in done.stderr
    assert "`pip install 'ale-core[all]'` has all of ours." in done.stderr


def test_a_package_whose_command_cannot_be_loaded_costs_that_command_alone(tmp_path: Path) -> None:
    write_package(tmp_path, "greeter", "raise RuntimeError('boom')", "ale.commands", "greet", "greeter:greet")
    assert ale("plugins", "list", path=tmp_path).returncode == 0
    assert "boom" in ale("--help", path=tmp_path).stderr
    assert ale("greet", path=tmp_path).returncode == 2


def test_an_evaluation_says_which_policy_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in ("model/sft", "checkpoints/step_3"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "config.json").write_text("{}")
    (tmp_path / "config.yaml").write_text("tasks: bash\nengine: {use: scripted, random: true}\nrl: {steps: 4}\n")
    taken = []

    async def run(loaded: LoadedConfig, progress: Any, folder: Path | None) -> None:
        taken.append(loaded.run.model.path)
        assert loaded.run.eval is not None
        assert loaded.run.eval.label == f"policy at step 3 of {tmp_path.name}"  # type: ignore[attr-defined]

    monkeypatch.setattr(evaluate_command, "plan_run", lambda loaded: loaded)  # that folder holds no whole model
    monkeypatch.setattr(evaluate_command, "run_pipeline", run)
    monkeypatch.setattr(evaluate_command, "print_result", lambda result: None)
    evaluate_command.evaluate(tmp_path, None)
    assert taken == [tmp_path / "checkpoints/step_3"]
    assert f"The policy is {taken[0]}." in capsys.readouterr().err
