"""`ale plugins new`: every kind's package installs with plain pip, is clean, and passes the conformance kit as it
is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest
from ale_command import ale
from kit import run_kit_here
from support.fake_packages import write_package

from ale_testing.plugin_templates import ABOUT, NEW_KINDS, PARTS
from ale_testing.template_leftovers import find_in_text

pytestmark = pytest.mark.slow


SOURCE = """
from ale_bash import BashTasks
class Fixed(BashTasks):
    pass
"""
MANIFEST = {"plugins": [{"kind": "tasks", "name": "far", "summary": "Asks for a word in a file."}]}


def package_of(kind: str) -> str:
    """Names of packages have no underscore."""
    return f"ale-plugin-my-{kind}".replace("_", "-")


def call(*command: str | Path, cwd: Path) -> str:
    """What a command prints; its failure fails the test with what it said."""
    # What whoever runs these tests asks of pytest is not asked of theirs: what they print is looked at.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": "", "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package of each kind, and `venv`, where all are installed beside what this environment has."""
    folder = tmp_path_factory.mktemp("new")
    for kind in NEW_KINDS:
        hooks = ["--hooks"] if kind == "scaffold" else []
        done = ale("plugins", "new", kind, f"my-{kind}", *hooks, "--out", folder)
        assert done.returncode == 0, done.stderr
        assert f"cd {folder}/{package_of(kind)}" in done.stdout
    added = ale("plugins", "new", "reward", "my-tasks", "--out", folder)
    assert added.returncode == 0, added.stderr
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = folder / "venv" / "bin" / "python"
    flags = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    sources = [folder / package_of(kind) for kind in NEW_KINDS]
    call(sys.executable, "-m", "pip", "wheel", *flags, "--wheel-dir", folder / "dist", *sources, cwd=folder)
    wheels = sorted((folder / "dist").glob("*.whl"))
    flags[2:] = ["--no-index", "--no-compile"]
    call(sys.executable, "-m", "pip", "--python", python, "install", *flags, *wheels, cwd=folder)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "zz.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return folder


TEST_ALL = """
import contextlib, io, json, os, sys
import pytest
outcomes = {}
for folder in sys.argv[1:]:
    os.chdir(folder)
    for name in [name for name in sys.modules if name.startswith("test_")]:
        del sys.modules[name]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = pytest.main(["-q", "-p", "no:cacheprovider"])
    outcomes[folder] = [int(code), out.getvalue()]
print(json.dumps(outcomes))
"""
"""Runs `pytest` in one folder after another. One process for all of them imports torch and the rest once."""


@pytest.fixture(scope="module")
def outcomes(packages: Path) -> dict[str, tuple[int, str]]:
    """The exit code of each kind's generated tests, and what they printed."""
    folders = [packages / package_of(kind) for kind in NEW_KINDS]
    found = json.loads(call(packages / "venv/bin/python", "-c", TEST_ALL, *folders, cwd=packages).splitlines()[-1])
    return {kind: found[str(folder)] for kind, folder in zip(NEW_KINDS, folders, strict=True)}


@pytest.mark.parametrize("kind", NEW_KINDS)
def test_its_generated_tests_pass_at_once(outcomes: dict[str, tuple[int, str]], kind: str) -> None:
    code, out = outcomes[kind]
    assert code == 0, out[-4000:]
    assert " passed" in out
    assert "failed" not in out
    assert "skipped" not in out


def test_each_plugin_of_a_package_is_tested(outcomes: dict[str, tuple[int, str]], packages: Path) -> None:
    counts = {kind: int(re.findall(r"(\d+) passed", out)[-1]) for kind, (_, out) in outcomes.items()}
    assert counts["environment"] > counts["tasks"] > 50, "tasks, scaffold and reward; tasks and the added reward"
    folder = packages / package_of("environment")
    listed = call(packages / "venv/bin/python", "-m", "pytest", "--collect-only", "-q", cwd=folder)
    for kind in PARTS["environment"]:
        assert listed.count(f"[{kind}:{folder.name}:my-environment]") > 20, listed[-2000:]


def test_the_run_file_of_an_environment_runs(packages: Path) -> None:
    command = [packages / "venv/bin/python", "-c", "from ale.cli.main import main; main()", "run", "run.yaml"]
    folder = packages / package_of("environment")
    summary = folder / call(*command, cwd=folder).splitlines()[-1]
    (found,) = json.loads(summary.read_text())["heldout"].values()
    assert found["episodes"] == 20
    assert 0 < found["success"] < 1


def test_their_sources_are_typed_and_clean(packages: Path) -> None:
    folders = [packages / package_of(kind) for kind in NEW_KINDS]
    settings = {(folder / "pyproject.toml").read_text().partition("[tool.mypy]")[2] for folder in folders}
    assert len(settings) == 1, "one run of mypy and ruff with the settings of one is each package's own"
    python, cache = packages / "venv/bin/python", Path(__file__).parents[2] / ".mypy_cache"  # that of `make typecheck`
    mypy = [python, "-m", "mypy", "--config-file", folders[0] / "pyproject.toml", "--cache-dir", cache]
    call(*mypy, *(folder / "src" for folder in folders), cwd=packages)
    call(python, "-m", "ruff", "check", "--no-cache", *folders, cwd=packages)


def test_the_algorithm_tells_the_mean_entropy_that_a_run_is_guarded_by(packages: Path) -> None:
    source = (
        "from ale.specs.driver import DriverContext; from ale_my_algorithm.algorithm import MyAlgorithm as A; "
        "print(A(A.Config(), DriverContext()).loss.metrics({'entropy_sum': 6.0, 'loss_tokens': 4.0})['entropy'])"
    )
    assert call(packages / "venv/bin/python", "-c", source, cwd=packages) == "1.5\n"


CHECK_MINE = """
import asyncio, json
from ale.registry.installed import list_plugins
from ale_testing.import_check import check_imports
mine = [info for info in list_plugins() if info.name.startswith("my-")]
print(json.dumps([found.problem for found in asyncio.run(check_imports(mine))]))
"""
"""What `ale plugins check` does, for the new packages alone: `test_wheels.py` lets it check all of ours."""


def test_all_of_them_are_listed_and_pass_the_check(packages: Path) -> None:
    command = [packages / "venv/bin/python", "-c", "from ale.cli.main import main; main()", "plugins"]
    listed = json.loads(call(*command, "list", "--json", cwd=packages))
    mine = {(p["kind"], p["name"]): p["status"] for p in listed if p["name"].startswith("my-")}
    wanted = {(own, f"my-{kind}") for kind in NEW_KINDS for own in PARTS.get(kind, (kind,))}
    assert mine == dict.fromkeys(wanted | {("hooks", "my-scaffold"), ("reward", "my-tasks")}, "ok")
    assert json.loads(call(packages / "venv/bin/python", "-c", CHECK_MINE, cwd=packages)) == [None] * len(mine)


RUN = """
name: strangers
run_dir: {folder}/runs
tasks: my-tasks
sandbox: my-sandbox
needs: {{network: full}}
scaffold: my-scaffold
reward: my-reward
engine: my-engine
session: {{tool_format: my-tool_format}}
cluster: my-cluster
trainer: null
algorithm: my-algorithm
observers: [my-hooks, my-scaffold]
rollout: {{max_calls: 2, max_tokens: 20}}
eval: {{episodes: 2}}
"""
TRAINED = """
name: strangers-train
run_dir: {folder}/runs
model: {{path: {model}}}
tasks: {{use: my-tasks}}
sandbox: my-sandbox
needs: {{network: full}}
scaffold: my-scaffold
reward: {{select: [{{use: my-reward, weight: 1}}, {{use: my-reward, price: 0.1}}]}}
engine: {{use: torch, threads: 1}}
trainer: {{use: my-trainer, lr: 1e-3}}
algorithm: {{use: my-algorithm, group_size: 2}}
cluster: my-cluster
observers: [my-hooks]
rollout: {{max_calls: 2, max_tokens: 20, max_context: 200}}
rl: {{steps: 1, prompts_per_step: 2, min_entropy: 0}}
eval: {{episodes: 2, every: 0}}
"""


def test_they_make_a_run_together(packages: Path) -> None:
    (packages / "run.yaml").write_text(RUN.format(folder=packages))
    command = [packages / "venv/bin/python", "-c", "from ale.cli.main import main; main()", "run"]
    summary = Path(call(*command, "run.yaml", cwd=packages).splitlines()[-1])
    assert json.loads(summary.read_text())["heldout"]["of_the_policy"]["episodes"] == 2
    assert (summary.parent / "my-hooks.jsonl").read_text().count('"stage": "eval"') == 1
    assert (summary.parent / "my-scaffold.jsonl").exists()


def test_they_train_together(packages: Path) -> None:
    from ale_testing.tiny_model import write_tiny_model

    write_tiny_model(packages / "tiny")
    (packages / "train.yaml").write_text(TRAINED.format(folder=packages, model=packages / "tiny"))
    command = [packages / "venv/bin/python", "-c", "from ale.cli.main import main; main()", "run"]
    summary = Path(call(*command, "train.yaml", cwd=packages).splitlines()[-1])
    assert json.loads(summary.read_text())["status"] == "completed"
    assert (summary.parent / "checkpoints" / "step_1" / "trainer.pt").is_file()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["sandbx", "x"], "There is no kind of plugin 'sandbx'. Did you mean 'sandbox'?"),
        (["sandbox", "My Box"], "'My Box' cannot be the name of a plugin"),
        (["sandbox", "../x"], "cannot be the name of a plugin"),
        (["sandbox", "class"], "'class' cannot be the name of a plugin"),
        (["hooks", "x", "--hooks"], "leave --hooks out"),
        (["sandbox", "x", "--out", "no/such"], "There is no folder no/such to write into."),
    ],
)
def test_a_mistake_is_a_sentence_and_writes_nothing(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    done = ale("plugins", "new", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "ale-plugin-x").mkdir()
    done = ale("plugins", "new", "reward", "x", cwd=tmp_path)
    assert done.returncode == 2
    assert "is there already, and is no package that a plugin can be added to" in done.stderr
    assert list((tmp_path / "ale-plugin-x").iterdir()) == []
    assert ale("plugins", "new", "reward", "y", cwd=tmp_path).returncode == 0
    before = tree(tmp_path)
    again = ale("plugins", "new", "reward", "y", cwd=tmp_path)
    assert again.returncode == 2
    assert "has a file src/ale_y/reward.py already; move it away" in again.stderr
    (tmp_path / "ale-plugin-y/src/ale_y/reward.py").rename(tmp_path / "ale-plugin-y/src/ale_y/judge.py")
    before = tree(tmp_path)
    again = ale("plugins", "new", "reward", "y", cwd=tmp_path)
    assert "ale-plugin-y has the reward plugin 'y' already (in pyproject.toml); choose another name." in again.stderr
    assert tree(tmp_path) == before


def test_a_kind_is_added_to_a_package_that_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "ale-plugin-y"
    assert ale("plugins", "new", "scaffold", "y", cwd=tmp_path).returncode == 0
    project = folder / "pyproject.toml"
    project.write_text(project.read_text().replace('name = "ale-plugin-y"', 'name = "ale-plugin-y"  # mine'))
    before = tree(tmp_path)
    done = ale("plugins", "new", "algorithm", "y", "--hooks", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "entry point ale.algorithm: y = ale_y.algorithm:YAlgorithm" in done.stdout
    after = tree(tmp_path)
    grown = {path for path in before if after[path] != before[path]}
    assert {Path(path).name for path in grown} == {"pyproject.toml"}
    for path in set(after) - set(before):
        assert path.removeprefix("ale-plugin-y/") in done.stdout
    settings = tomllib.loads(project.read_text())
    assert "# mine" in project.read_text()
    assert settings["project"]["entry-points"] == {
        "ale.scaffold": {"y": "ale_y.scaffold:Y"},
        "ale.algorithm": {"y": "ale_y.algorithm:YAlgorithm"},
        "ale.hooks": {"y": "ale_y.observer:YObserver"},
    }
    assert any(one.startswith("ale-torch") for one in settings["project"]["dependencies"])
    options = settings["tool"]["pytest"]["ini_options"]["addopts"]
    assert [word for word in options.split() if word != "--ale-plugin"] == [
        f"{kind}:ale-plugin-y:y" for kind in ("scaffold", "algorithm", "hooks")
    ]


@pytest.mark.parametrize("broken", ["[project", "project = 3", '[project]\ndependencies = "x"\n', "\xff"])
def test_a_package_that_cannot_be_read_is_a_sentence_and_stays_as_it_is(tmp_path: Path, broken: str) -> None:
    assert ale("plugins", "new", "scaffold", "y", cwd=tmp_path).returncode == 0
    (tmp_path / "ale-plugin-y/pyproject.toml").write_bytes(broken.encode("latin-1"))
    before = tree(tmp_path)
    done = ale("plugins", "new", "reward", "y", cwd=tmp_path)
    assert done.returncode == 2
    assert "ale-plugin-y/pyproject.toml cannot be added to: " in done.stderr
    assert "Traceback" not in done.stderr
    assert tree(tmp_path) == before


def tree(folder: Path) -> dict[str, bytes]:
    """The files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_published_package_with_the_templates_sentences_fails_the_kit(tmp_path: Path) -> None:
    readme = "# ale-plugin-far\n\nAsks for a word in a file.\n\nTODO: say more.\nLimits: five tasks.\n"
    write_package(tmp_path, "far-away", SOURCE, name="far", kind="tasks", manifest=MANIFEST)
    info = tmp_path / "far_away-2.1.dist-info" / "METADATA"
    head = "Metadata-Version: 2.1\nName: far-away\nVersion: 2.1\nSummary: Words.\n"
    for marked, code in (("Classifier: Private :: Do Not Upload\n", 0), ("", 1)):
        info.write_text(f"{head}{marked}\n{readme}")
        done = run_kit_here(tmp_path, "tasks:far", "-k", "test_its_readme", path=tmp_path)
        assert done.returncode == code, done.stdout[-2000:]
    for line, sentence in ((3, "Asks for a word in a file."), (5, "TODO: say more."), (6, "five tasks.")):
        assert f"the README of far-away, line {line}, still has a sentence of the template: '{sentence}'" in done.stdout
    assert "the summary of tasks 'far' still has a sentence of the template: 'Asks for" in done.stdout


def test_the_sentences_that_are_looked_for_are_those_that_a_new_package_has(packages: Path) -> None:
    for kind in NEW_KINDS:
        readme = packages / package_of(kind) / "README.md"
        found = [leftover.text for leftover in find_in_text(readme.name, readme.read_text())]
        assert found == [ABOUT[kind].summary, ABOUT[kind].limits], kind
