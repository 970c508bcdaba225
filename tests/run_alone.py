"""`make test-alone`: runs the tests of each package where nothing is installed but what the package declares.

1. The wheels of all packages are built once.
2. For each package an environment is made that holds its closure (`declared_packages.py`) with the extra `test`: ours
   from their wheels, those of third parties as links to what is installed here, so that nothing is downloaded.
3. Its folder `tests` is copied away from the checkout and run there; a table says what came of each.

Names of packages as arguments run these alone; `--keep FOLDER` leaves the environments in a folder.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
from collections import defaultdict
from functools import cache
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePosixPath

from declared_packages import ROOT, Package, closure, our_packages
from packaging.utils import canonicalize_name

INHERITED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTEST_ADDOPTS")
COUNTED = ("passed", "skipped", "failed", "errors")


def main() -> int:
    """Run all packages, or those that are named; 1 where a test of one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="such as ale-core; default: all")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where to leave the environments")
    asked = parser.parse_args()
    if unknown := set(asked.packages) - set(our_packages()):
        parser.error(f"there is no package {', '.join(sorted(unknown))}; there are {', '.join(our_packages())}")
    chosen = [package for name, package in our_packages().items() if name in (asked.packages or our_packages())]
    with tempfile.TemporaryDirectory(prefix="ale-alone-") as temporary:
        folder = (asked.keep or Path(temporary)).resolve()
        wheels = build_wheels(folder / "wheels")
        results = {package.name: run_tests(package, wheels, folder) for package in chosen if package.tests.is_dir()}
    print("\n" + "\n".join(describe_results(results)))
    return int(any(not ran or count["failed"] or count["errors"] for ran, count in results.values()))


def build_wheels(folder: Path) -> dict[str, Path]:
    """Build the wheels of all our packages; their paths by the packages' names."""
    flags = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder)]
    sources = [package.folder for package in our_packages().values()]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *flags, *sources], check=True)
    return {canonicalize_name(path.name.split("-")[0]): path for path in folder.glob("*.whl")}


def run_tests(package: Package, wheels: dict[str, Path], folder: Path) -> tuple[bool, dict[str, int]]:
    """Run a package's tests in an environment of its own: whether pytest ran any, and how many ended how."""
    print(f"\n== {package.name}", flush=True)
    place = folder / package.name
    shutil.rmtree(place, ignore_errors=True)
    python = make_environment(place / "venv", closure(package.name), wheels)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(package.tests, place / "tests", ignore=ignored)
    shutil.copytree(ROOT / "tests/support", place / "shared/support", ignore=ignored)
    (place / "pytest.ini").write_text(pytest_settings())
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    environment = {name: value for name, value in os.environ.items() if name not in INHERITED}
    output = []
    with subprocess.Popen(command, cwd=place, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            output.append(line)
    last = next((line for line in reversed(output) if re.search(r" in [\d.]+s", line)), "")
    counts = {word: int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", last)}
    counts["errors"] = counts.get("errors", 0) + counts.get("error", 0)
    return process.returncode in (0, 1), {word: counts.get(word, 0) for word in COUNTED}


def make_environment(folder: Path, names: set[str], wheels: dict[str, Path]) -> Path:
    """Make an environment in which these packages alone are installed; its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin/python"
    flags = ["--quiet", "--no-deps", "--no-index", "--no-compile", "--no-warn-script-location"]
    ours = [wheels[name] for name in sorted(names & wheels.keys())]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", *flags, *ours], check=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    for place in links(names - wheels.keys()):
        target = site / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(Path(sysconfig.get_path("purelib")) / place)
    return python


def links(names: set[str]) -> list[PurePosixPath]:
    """What of the site-packages folder belongs to these packages: the largest folders that hold nothing of others."""
    mine = {place for name in names for place in places_of_packages().get(name, ())}
    others = {place for name, places in places_of_packages().items() if name not in names for place in places}
    whole = mine - others
    return sorted(place for place in whole if place.parent not in whole)


@cache
def places_of_packages() -> dict[str, set[PurePosixPath]]:
    """The files in site-packages of each installed package, and the folders above them."""
    found: dict[str, set[PurePosixPath]] = defaultdict(set)
    for installed in distributions():
        places = found[canonicalize_name(installed.name)]
        for path in recorded_files(installed):
            while path.parts and path not in places:
                places.add(path)
                path = path.parent
    return found


def recorded_files(installed: Distribution) -> list[PurePosixPath]:
    """The files that a package lists in its RECORD and that lie in site-packages, without what leads elsewhere."""
    paths = [PurePosixPath(path) for path in installed.files or ()]
    return [path for path in paths if ".." not in path.parts and path.suffix != ".pth" and not path.is_absolute()]


def pytest_settings() -> str:
    """The repository's settings of pytest, as an ini file for the copied tests."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    settings |= {"pythonpath": ["tests", "shared"], "testpaths": ["tests"]}
    lines = (
        f"{key} =" + "".join(f"\n  {each}" for each in value) if isinstance(value, list) else f"{key} = {value}"
        for key, value in settings.items()
    )
    return "[pytest]\n" + "\n".join(lines) + "\n"


def describe_results(results: dict[str, tuple[bool, dict[str, int]]]) -> list[str]:
    """The table."""
    rows: list[tuple[str, ...]] = [("package", *COUNTED)]
    for name, (ran, counts) in results.items():
        rows.append((name, *(str(counts[word]) if ran else "-" for word in COUNTED)))
    return [f"{row[0]:28}" + "".join(f"{cell:>9}" for cell in row[1:]) for row in rows]


if __name__ == "__main__":
    sys.exit(main())
