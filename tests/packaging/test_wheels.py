"""The wheels of all packages, alone: installed where nothing of the checkout can be seen, they train.

The clean environment sees the third-party packages of this one through links, so that nothing is downloaded; of ALE it
sees only the wheels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Callable
from email.parser import Parser
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from declared_packages import closure, our_packages
from install_lines import documents, install_lines
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from run_alone import build_wheels

from ale.specs.kinds import ALL_KINDS

pytestmark = pytest.mark.slow


def project(package: Path) -> dict[str, Any]:
    return dict(tomllib.loads((package / "pyproject.toml").read_text())["project"])


ROOT = Path(__file__).parents[2]
PLUGINS = sorted(p.parent for p in (ROOT / "plugins").glob("*/pyproject.toml"))
PACKAGES = [ROOT / "core", *sorted(p.parent for p in (ROOT / "libs").glob("*/pyproject.toml")), *PLUGINS]
LISTED = [
    package
    for package in PACKAGES
    if {f"ale.{kind}" for kind in ALL_KINDS} & set(project(package).get("entry-points", ()))
]
"""Those that bring plugins, and not commands alone."""
RUN = """
name: wheels
model:
  scratch: {hidden_size: 32, layers: 1, heads: 2, kv_heads: 1, vocab_size: 400, max_length: 512}
tasks: {use: bash, families: [write]}
engine: {use: torch, threads: 1, max_batch: 4}
trainer: {use: torch, threads: 1}
algorithm: {use: ipa, group_size: 2}
rollout: {concurrency: 4, max_calls: 2, max_tokens: 16, max_context: 512}
sft: {demonstrations: {count: 6, keep_failed: true}, steps: 2, batch_size: 4}
rl: {steps: 2, prompts_per_step: 2}
eval: {episodes: 2, every: 0}
"""


def call(*command: str | Path, cwd: Path | None = None, timeout_s: float = 280) -> str:
    """What a command prints; its failure fails the test with what it said."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of each package, by the package's name."""
    return build_wheels(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def clean(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment in which only the wheels are installed."""
    python = new_environment(tmp_path_factory.mktemp("clean"))
    # Installed before the links are there: pip must not take anything for already installed.
    flags = ["--quiet", "--no-deps", "--no-index", "--no-compile", "--no-warn-script-location"]
    call(sys.executable, "-m", "pip", "--python", python, "install", *flags, *wheels.values())
    link_third_parties(python)
    return python.parent


def new_environment(folder: Path) -> Path:
    """Make an empty environment; returns its Python."""
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    return folder / "venv" / "bin" / "python"


def link_third_parties(python: Path) -> None:
    """Let an environment see what this one has besides ALE's packages."""
    third_party = python.parents[2] / "third-party"
    third_party.mkdir()
    for folder in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(folder).iterdir():
            # Neither ALE's own packages nor the .pth files of editable installs, which lead to the checkout.
            if not entry.name.startswith("ale_") and entry.suffix != ".pth":
                (third_party / entry.name).symlink_to(entry)
    (site,) = (python.parents[1] / "lib").glob("python*/site-packages")
    (site / "third-party.pth").write_text(f"{third_party}\n")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: p.name)
def test_a_wheel_holds_every_file_of_its_package(wheels: dict[str, Path], package: Path) -> None:
    names = set(zipfile.ZipFile(wheels[project(package)["name"]]).namelist())
    source = package / "src"
    wanted = {
        str(path.relative_to(source))
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted <= names
    assert any(name.endswith("/py.typed") for name in names)
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {folder.name for folder in source.iterdir()}, "nothing beside the package"


@pytest.mark.parametrize("package", PLUGINS, ids=lambda p: p.name)
def test_a_plugins_wheel_says_what_it_brings(wheels: dict[str, Path], package: Path) -> None:
    about = project(package)
    wheel = zipfile.ZipFile(wheels[about["name"]])
    assert any(about["entry-points"].values()), "a plugin brings something"
    (text,) = [wheel.read(n).decode() for n in wheel.namelist() if n.endswith(".dist-info/METADATA")]
    headers = Parser().parsestr(text)
    assert headers["Summary"] == about["description"], "what `ale plugins list` shows"
    assert any(r.startswith("ale-core") for r in headers.get_all("Requires-Dist", []))
    assert headers["License-Expression"] == "Apache-2.0"
    assert headers["Requires-Python"] == ">=3.11"
    assert str(ROOT) not in text


def test_the_wheels_are_fit_for_an_index(wheels: dict[str, Path], tmp_path: Path) -> None:
    assert "PASSED" in call(sys.executable, "-m", "twine", "check", "--strict", *wheels.values(), cwd=tmp_path)


def test_the_extras_of_the_core_name_packages_that_there_are(wheels: dict[str, Path]) -> None:
    extras = dict(project(ROOT / "core")["optional-dependencies"])
    del extras["test"]  # what the core's own tests need, of third parties too
    assert {"quickstart", "observers", "testing", "all"} <= set(extras)
    extras = {extra: [name.partition("[")[0] for name in group] for extra, group in extras.items()}
    ours = {name for group in extras.values() for name in group if name.startswith("ale-plugin-")}
    assert ours == {name for name in wheels if name.startswith("ale-plugin-")}, "every plugin of ours is in some set"
    assert ours <= closure("ale-core", "all")
    assert {name for group in extras.values() for name in group} <= set(wheels)


@pytest.fixture(scope="module")
def resolve(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., set[str]]:
    """Lets pip resolve what it is asked to install, from the wheels and this environment's third parties alone; returns
    the packages that it would install."""
    folder = tmp_path_factory.mktemp("resolved")
    python = new_environment(folder)
    link_third_parties(python)

    def would_install(*what: str) -> set[str]:
        report = folder / "report.json"
        flags = ["--quiet", "--dry-run", "--no-index", "--find-links", str(next(iter(wheels.values())).parent)]
        call(sys.executable, "-m", "pip", "--python", python, "install", *flags, "--report", report, *what)
        return {canonicalize_name(each["metadata"]["name"]) for each in json.loads(report.read_text())["install"]}

    return would_install


def test_every_line_of_the_docs_that_installs_packages_of_ours_can_be_resolved(
    resolve: Callable[..., set[str]],
) -> None:
    ours = {a for line in install_lines(documents()) for a in line.arguments if not a.startswith((".", "/"))}
    ours = {a for a in ours if Requirement(a).name in our_packages() and third_parties_are_here(Requirement(a))}
    assert ours >= {"ale-core[all]", "ale-core[quickstart]", "ale-plugin-ipa"}
    # What can be installed together can be installed line by line.
    assert resolve(*sorted(ours)) == set(our_packages())


def third_parties_are_here(requirement: Requirement) -> bool:
    """Whether this environment has what an extra brings, such as torchao, which few machines have."""
    names = {name for extra in requirement.extras for name in closure(requirement.name, extra)} - set(our_packages())
    return all(find_distribution(name) for name in names)


def find_distribution(name: str) -> bool:
    try:
        return bool(metadata.distribution(name))
    except metadata.PackageNotFoundError:
        return False


@pytest.mark.parametrize(("what", "most"), [(["ale-core", "ale-plugin-ipa"], 4), (["ale-core[quickstart]"], 16)])
def test_what_most_users_install_brings_few_packages(
    resolve: Callable[..., set[str]], what: list[str], most: int
) -> None:
    brought = resolve(*what)
    assert brought <= set(our_packages()), "the third parties are there already"
    assert len(brought) <= most, sorted(brought)


@pytest.fixture(scope="module")
def from_the_index(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Installs packages of ours and, from the index, what they depend on; the bin folder of the one environment."""
    python = new_environment(tmp_path_factory.mktemp("index"))

    def install(*what: str) -> Path:
        found = ["--quiet", "--no-compile", "--find-links", str(next(iter(wheels.values())).parent)]
        call(sys.executable, "-m", "pip", "--python", python, "install", *found, *what)
        return python.parent

    return install


@pytest.mark.network
def test_the_core_alone_says_what_to_install(from_the_index: Callable[..., Path], tmp_path: Path) -> None:
    bin_ = from_the_index("ale-core")
    listed = call(bin_ / "ale", "plugins", "list")
    assert {line.split()[0] for line in listed.splitlines()[1:]} == {"tool_format"}
    assert "No sandbox plugin is installed; `pip" in call(bin_ / "ale", "plugins", "list", "--kind", "sandbox")
    checked = subprocess.run([bin_ / "ale", "plugins", "check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 2
    assert (
        "`ale plugins check` comes with ale-testing, which is not installed: `pip install ale-testing`."
        in checked.stderr
    )
    done = subprocess.run([bin_ / "ale", "run", "run.yaml"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "`ale run` comes with ale-train, which is not installed: `pip install ale-train`." in done.stderr
    heavy = "import importlib.util as u; print([m for m in ('torch', 'ray', 'pytest') if u.find_spec(m)])"
    assert call(bin_ / "python", "-c", heavy).strip() == "[]", "the core brings none of them"


@pytest.mark.network
@pytest.mark.bwrap
def test_one_plugin_more_keeps_the_contract(from_the_index: Callable[..., Path], tmp_path: Path) -> None:
    bin_ = from_the_index("ale-core[testing]", "ale-plugin-local")
    assert "6 checked, 0 failed." in call(bin_ / "ale", "plugins", "check")
    call(bin_ / "ale", "plugins", "new", "reward", "mine", cwd=tmp_path)
    kit = [bin_ / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "ale_testing"]
    out = call(*kit, "--ale-plugin", "sandbox:local", "-k", "exec or files or stop or declares", cwd=tmp_path)
    assert " passed" in out
    assert "failed" not in out


def test_everything_together_passes_the_check(clean: Path, tmp_path: Path) -> None:
    checked = json.loads(call(clean / "ale", "plugins", "check", "--json", cwd=tmp_path))
    assert len(checked) >= len(LISTED)
    assert [p for p in checked if not p["ok"]] == []


def test_the_wheel_of_the_bash_tasks_brings_the_graded_ones(wheels: dict[str, Path]) -> None:
    text = zipfile.ZipFile(wheels["ale-plugin-bash"]).read("ale_bash/graded.jsonl").decode()
    assert len([json.loads(line) for line in text.splitlines()]) >= 20


def test_what_is_installed_is_the_wheels(clean: Path, tmp_path: Path) -> None:
    where = call(clean / "python", "-c", "import ale, ale_ipa; print(ale.__file__, ale_ipa.__file__)", cwd=tmp_path)
    for path in where.split():
        assert Path(path).is_relative_to(clean.parent)
    listed = json.loads(call(clean / "ale", "plugins", "list", "--json", cwd=tmp_path))
    assert {i["package"] for i in listed} == {project(p)["name"] for p in LISTED}
    assert {i["status"] for i in listed} == {"ok"}
    assert all(i["summary"] for i in listed)


def test_the_wheels_train_from_any_folder(clean: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(RUN)
    printed = call(clean / "ale", "run", "tiny.yaml", cwd=tmp_path)
    summary = json.loads((tmp_path / printed.splitlines()[-1]).read_text())
    assert summary["status"] == "completed"
    assert set(summary["heldout"]) >= {"after_sft", "after_rl"}
    assert (tmp_path / "runs" / summary["run_id"] / "model" / "final").is_dir()


def test_building_the_wheels_needs_no_full_install(tmp_path: Path) -> None:
    told = subprocess.run(
        ["make", "--dry-run", "wheels", f"WHEELS={tmp_path / 'venv'}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "hatchling" in told
    assert "./core ./libs/endpoint" in told
    assert "torch==" not in told
