"""`make test-pythons`: runs what needs no torch with each version of Python that ALE supports.

1. `python3.X` is looked for on PATH, then among pyenv's versions. A version that is not there is skipped.
2. Each version has an environment in `.venv-pythons/`, which uv makes. It holds the packages that the tests of ale-core
   and ale-train need, from the checkout, but no torch: that would be a download of several GB for each version. It is
   made again once a pyproject.toml changes.
3. In it run these tests except `LEFT_OUT`, `ale --help`, `ale plugins list`, and a run with scripted answers. As many
   versions run at once as there are cores.

Arguments are the versions, such as `3.12 3.13`; without any, all are tested.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from declared_packages import closure, our_packages  # noqa: E402

VERSIONS = ("3.11", "3.12", "3.13")
ENVIRONMENTS = ROOT / ".venv-pythons"
INSTALLED = {"ale-core": "test", "ale-engines": "", "ale-train": "test"}
"""Packages, each with an extra, that are installed with what they need of ours. ale-engines has the scripted engine."""
NOT_INSTALLED = ("accelerate", "peft", "torch")
"""Third parties that are left out. Plugins import them only when a model is loaded or a loss is computed."""
TESTS = ("core/tests", "libs/train/tests")
LEFT_OUT = (
    "libs/train/tests/models/test_scratch_model.py",  # needs torch
    "libs/train/tests/commands/test_show.py",  # these take long for what they tell about a version of Python
    "libs/train/tests/models/test_download.py",
    "libs/train/tests/rl/test_sample_buffer.py",
    "libs/train/tests/starts/test_snapshot_starts.py",
    "libs/train/tests/supervised/test_text_sequences.py",
)
RUN_FILE = "examples/mixed.yaml"
"""Shell tasks, local sandboxes and scripted answers. Without a trainer there are rollouts alone."""
OF_ANOTHER_PYTHON = ("PYTHONHOME", "PYTHONPATH", "PYTEST_ADDOPTS", "VIRTUAL_ENV")


@dataclass(frozen=True)
class Result:
    """The result of one version: `text` says it, below the output of what failed."""

    text: str
    failed: bool = False


def main(asked: list[str]) -> int:
    """Try these versions, or all, and print the results; 1 if one failed."""
    versions = asked or list(VERSIONS)
    if unknown := set(versions) - set(VERSIONS):
        print(f"ALE is not tested with Python {', '.join(sorted(unknown))}, only with {', '.join(VERSIONS)}.")
        return 2
    missing = [path for path in (*LEFT_OUT, *TESTS, RUN_FILE) if not (ROOT / path).exists()]
    assert not missing, f"take out of scripts/test_pythons.py what is not there any more: {', '.join(missing)}"
    if not shutil.which("bwrap"):
        print(f"{RUN_FILE} is not run: its local sandboxes need bubblewrap (apt-get install bubblewrap).")
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        results = list(threads.map(try_version, versions))
    print("\n".join(result.text for result in results))
    return int(any(result.failed for result in results))


def try_version(version: str) -> Result:
    """Make the environment of a version and run the commands in it."""
    python = find_python(version)
    if python is None:
        return Result(f"Python {version} is skipped: there is no python{version} on PATH or among pyenv's versions.")
    began, summary = time.monotonic(), ""
    with tempfile.TemporaryDirectory(prefix="ale-python-") as temporary:
        try:
            programs = make_environment(version, python) / "bin"
            for command in list_commands(programs, Path(temporary)):
                output = execute(*command)
                summary = next((line for line in output.splitlines() if " passed" in line), summary)
        except subprocess.CalledProcessError as error:
            failed = " ".join(map(str, error.cmd))
            return Result(f"{error.output}\nPython {version} failed in: {failed}", failed=True)
    return Result(f"Python {version}: {summary}; {time.monotonic() - began:.0f} s with everything else")


def find_python(version: str) -> Path | None:
    """Return a Python of this version, or None. A command of pyenv on PATH may refuse to run."""
    candidates = [Path(found)] if (found := shutil.which(f"python{version}")) else []
    if shutil.which("pyenv"):
        root = subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=True).stdout.strip()
        candidates += sorted(Path(root, "versions").glob(f"{version}.*/bin/python{version}"))
    for candidate in candidates:
        program = "import sys; print(sys.executable)"
        ran = subprocess.run([candidate, "-c", program], capture_output=True, text=True, check=False)
        if ran.returncode == 0:
            return Path(ran.stdout.strip())
    return None


def make_environment(version: str, python: Path) -> Path:
    """Return the folder of the environment. It is made only if another one was, or none."""
    folder = ENVIRONMENTS / version
    ours = {name for package, extra in INSTALLED.items() for name in closure(package, extra)} & our_packages().keys()
    sources = [our_packages()[name].folder for name in sorted(ours)]
    requirements = [f"{our_packages()[name].folder}[{extra}]" for name, extra in INSTALLED.items() if extra]
    texts = [str(python), Path(__file__).read_text(), *((each / "pyproject.toml").read_text() for each in sources)]
    digest, stamp = hashlib.sha256("\n".join(texts).encode()).hexdigest(), folder / "installed"
    if stamp.is_file() and stamp.read_text() == digest:
        return folder
    uv = find_uv()
    execute(uv, "venv", "--quiet", "--clear", "--python", python, folder)
    never = folder / "not_installed.txt"
    never.write_text("".join(f"{name}; python_version < '3'\n" for name in NOT_INSTALLED))
    editable = [argument for each in (*sources, *requirements) for argument in ("--editable", each)]
    execute(uv, "pip", "install", "--quiet", "--python", folder / "bin/python", "--overrides", never, *editable)
    stamp.write_text(digest)
    return folder


def find_uv() -> Path | str:
    """Return the program uv: of the environment that runs this, or of PATH."""
    beside = Path(sys.executable).with_name("uv")
    return beside if beside.exists() else "uv"


def list_commands(programs: Path, temporary: Path) -> Iterator[tuple[str | Path, ...]]:
    """Return what runs in an environment."""
    ale = programs / "ale"
    yield ale, "--help"
    yield ale, "plugins", "list"
    if shutil.which("bwrap"):
        yield ale, "run", RUN_FILE, "--out", temporary / "run", "eval.episodes=4"
    # Without a cache: it is of `make test`, and several versions would write it at once.
    tests = ("-q", "--tb=short", "-p", "no:cacheprovider", *(f"--ignore={path}" for path in LEFT_OUT), *TESTS)
    yield programs / "python", "-m", "pytest", *tests


def execute(*command: str | Path) -> str:
    """Run a command in the repository and return its output. Raises `CalledProcessError` with it if it fails."""
    environment = {name: value for name, value in os.environ.items() if name not in OF_ANOTHER_PYTHON}
    environment |= {"UV_PYTHON_DOWNLOADS": "never", "PATH": f"{Path(command[0]).parent}:{os.environ['PATH']}"}
    ran = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    )
    return ran.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
