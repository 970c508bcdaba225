"""`ale plugins new`: every kind's package installs with plain pip, is clean, and passes the conformance kit as it
is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from ale_command import ale

from ale.specs.kinds import ALL_KINDS

pytestmark = pytest.mark.slow


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
    for kind in ALL_KINDS:
        hooks = ["--hooks"] if kind == "scaffold" else []
        done = ale("plugins", "new", kind, f"my-{kind}", *hooks, "--into", folder)
        assert done.returncode == 0, done.stderr
        assert f"cd {folder}/{package_of(kind)}" in done.stdout
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = folder / "venv" / "bin" / "python"
    flags = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    sources = [folder / package_of(kind) for kind in ALL_KINDS]
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
    folders = [packages / package_of(kind) for kind in ALL_KINDS]
    found = json.loads(call(packages / "venv/bin/python", "-c", TEST_ALL, *folders, cwd=packages).splitlines()[-1])
    return {kind: found[str(folder)] for kind, folder in zip(ALL_KINDS, folders, strict=True)}


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_its_generated_tests_pass_at_once(outcomes: dict[str, tuple[int, str]], kind: str) -> None:
    code, out = outcomes[kind]
    assert code == 0, out[-4000:]
    assert " passed" in out
    assert "failed" not in out
    assert "skipped" not in out


def test_their_sources_are_typed_and_clean(packages: Path) -> None:
    folders = [packages / package_of(kind) for kind in ALL_KINDS]
    settings = {(folder / "pyproject.toml").read_text().partition("[tool.mypy]")[2] for folder in folders}
    assert len(settings) == 1, "one run of mypy and ruff with the settings of one is each package's own"
    python, cache = packages / "venv/bin/python", Path(__file__).parents[2] / ".mypy_cache"  # that of `make typecheck`
    mypy = [python, "-m", "mypy", "--config-file", folders[0] / "pyproject.toml", "--cache-dir", cache]
    call(*mypy, *(folder / "src" for folder in folders), cwd=packages)
    call(python, "-m", "ruff", "check", "--no-cache", *folders, cwd=packages)


def test_the_algorithm_tells_the_mean_entropy_that_a_run_is_guarded_by(packages: Path) -> None:
    source = (
        "from ale.specs.driver import DriverContext; from ale_my_algorithm import MyAlgorithm as A; "
        "print(A(A.Config(), DriverContext()).loss.metrics({'entropy_sum': 6.0, 'loss_tokens': 4.0})['entropy'])"
    )
    assert call(packages / "venv/bin/python", "-c", source, cwd=packages) == "1.5\n"


CHECK_MINE = """
import asyncio, json
from ale.registry.installed import list_plugins
from ale_testing.import_check import check_import
mine = [info for info in list_plugins() if info.name.startswith("my-")]
print(json.dumps([asyncio.run(check_import(info)).problem for info in mine]))
"""
"""What `ale plugins check` does, for the new packages alone: `test_wheels.py` lets it check all of ours."""


def test_all_of_them_are_listed_and_pass_the_check(packages: Path) -> None:
    command = [packages / "venv/bin/python", "-c", "from ale.cli.main import main; main()", "plugins"]
    listed = json.loads(call(*command, "list", "--json", cwd=packages))
    mine = {(p["kind"], p["name"]): p["status"] for p in listed if p["name"].startswith("my-")}
    assert mine == {**{(k, f"my-{k}"): "ok" for k in ALL_KINDS}, ("hooks", "my-scaffold"): "ok"}
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
    assert (summary.parent / "model" / "final" / "trainer.pt").is_file()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["sandbx", "x"], "There is no kind of plugin 'sandbx'. Did you mean 'sandbox'?"),
        (["sandbox", "My Box"], "'My Box' cannot be the name of a plugin"),
        (["sandbox", "../x"], "cannot be the name of a plugin"),
        (["sandbox", "class"], "'class' cannot be the name of a plugin"),
        (["hooks", "x", "--hooks"], "leave --hooks out"),
        (["sandbox", "x", "--into", "no/such"], "There is no folder no/such to write into."),
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
    assert "is there already" in done.stderr
    assert list((tmp_path / "ale-plugin-x").iterdir()) == []
