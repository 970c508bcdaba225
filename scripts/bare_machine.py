"""A GPU check on a machine with nothing but torch: `gpu_check.sh --wheels` prepares it, `gpu_check.sh --bare` runs it.

1. On a machine with an index, `wheels` downloads what ALE needs beside torch, for the other machine's Python.
2. There, `check` makes an environment that sees the packages of that machine's own Python, installs what is missing
   from the wheels and ALE from this repository, and measures one part of `gpu_parts.py` after the other, each in a
   process of its own: an error, or a device without memory, costs the other parts nothing.
3. It prints one table. What failed is named in it, and the exit code is 1.

`check` needs the standard library and pip alone.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
WHEELS = REPOSITORY / "wheels"
ASKED = (("ale-core", "quickstart"), ("ale-plugin-pg", ""))
"""Our packages that are measured, each with an extra."""
PACKAGES = "packages.txt"
"""The file beside the wheels with the folders of our packages that are installed."""
BUILD = ("hatchling",)
PARTS = {"machine": 20, "quickstart": 180, "loss": 40, "trainer": 80, "engine": 80, "context": 80}
"""The parts of `gpu_parts.py`, and the seconds that each may take."""
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def download(folder: Path, python: str, present: Iterable[str]) -> None:
    """Fill a folder with the wheels of what ALE needs beside torch and what else is `present` on the other machine, in
    the versions that are installed here, and write the list of our packages."""
    sys.path.insert(0, str(REPOSITORY / "tests"))
    from declared_packages import closure, our_packages

    there = set[str]().union(*(closure(name, "") for name in ("torch", *present)))
    needed = set[str]().union(*(closure(*each) for each in ASKED), *(closure(name, "") for name in BUILD)) - there
    ours = {name: package for name, package in our_packages().items() if name in needed}
    pins = sorted(f"{name}=={importlib.metadata.version(name)}" for name in needed - ours.keys())
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.whl"):
        stale.unlink()
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    (folder / PACKAGES).write_text("".join(f"{each.folder.relative_to(REPOSITORY)}\n" for each in ours.values()))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    of_python = ["--implementation", "cp", "--python-version", python]
    subprocess.run([*command, *of_python, *platforms, "--dest", str(folder), *pins], check=True)
    wheels = list(folder.glob("*.whl"))
    size = sum(wheel.stat().st_size for wheel in wheels) / 2**20
    print(f"{len(wheels)} wheels for Python {python} are in {folder} ({size:.0f} MiB).")


def make_environment(folder: Path, wheels: Path) -> Path:
    """Make an environment beside the packages of the Python that runs this, with ALE in it, and return its Python.

    pip is called from outside: a bare machine's Python may lack `ensurepip`."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    packages = next((folder / "lib").glob("python*")) / "site-packages"
    (packages / "machine.pth").write_text("\n".join([*site.getsitepackages(), site.getusersitepackages()]) + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile", "--no-index"]
    pip += ["--disable-pip-version-check", "--find-links", str(wheels)]
    subprocess.run([*pip, *BUILD], check=True)
    ours = [str(REPOSITORY / name) for name in (wheels / PACKAGES).read_text().split()]
    subprocess.run([*pip, "--no-build-isolation", *ours], check=True)
    return python


def measure(part: str, python: Path, device: str, work: Path) -> tuple[list[tuple[str, str]], str]:
    """Run one part in a process of its own. Return its figures by name, and what went wrong, or nothing."""
    figures = work / f"{part}.jsonl"
    command = [str(python), str(REPOSITORY / "scripts/gpu_parts.py"), part, "--device", device, "--out", str(figures)]
    log, fault = work / f"{part}.log", ""
    with log.open("w") as stream:
        try:
            done = subprocess.run(
                command, stdout=stream, stderr=subprocess.STDOUT, timeout=PARTS[part], cwd=work, check=False
            )
            fault = "" if done.returncode == 0 else f"exit code {done.returncode}"
        except subprocess.TimeoutExpired:
            fault = f"not done after {PARTS[part]} s"
    if fault:
        print(f"-- {part}: {fault}; the end of its output:", "".join(log.read_text().splitlines(True)[-30:]), sep="\n")
    rows = [json.loads(line) for line in figures.read_text().splitlines()] if figures.exists() else []
    return [(name, value) for name, value in rows], fault


def check(device: str, wheels: Path, out: Path | None, parts: list[str]) -> bool:
    """Measure those parts and print the table, also to a file, as it grows. Return whether nothing failed."""
    began, failed, rows = time.monotonic(), [], ["| part | what | figure |", "| --- | --- | --- |"]

    def add(part: str, what: str, figure: str) -> None:
        rows.append(f"| {part} | {what} | {figure} |")
        if out is not None:
            out.write_text("\n".join(rows) + "\n")

    with tempfile.TemporaryDirectory(prefix="ale-gpu-check-") as made:
        work = Path(made)
        os.environ["XDG_DATA_HOME"] = str(work / "data")
        python = make_environment(work / "environment", wheels)
        print(f"-- installed in {time.monotonic() - began:.0f} s", flush=True)
        for part in parts:
            started = time.monotonic()
            figures, fault = measure(part, python, device, work)
            for what, figure in figures:
                add(part, what, figure)
            if fault:
                failed.append(part)
                add(part, "**failed**", fault)
            print(f"-- {part}: {time.monotonic() - started:.0f} s", flush=True)
    add("all", "this check, with its installation", f"{time.monotonic() - began:.0f} s")
    print("\n".join(rows))
    if failed:
        print(f"These parts failed: {', '.join(failed)}.")
    return not failed


def main() -> None:
    """`wheels` or `check`."""
    parser = argparse.ArgumentParser(prog="scripts/gpu_check.sh", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    fetch = commands.add_parser("wheels", help="download the wheels, on a machine with an index")
    fetch.add_argument("folder", nargs="?", type=Path, default=WHEELS)
    fetch.add_argument("--python", default="3.12", help="the other machine's Python (default: 3.12)")
    fetch.add_argument(
        "--present", nargs="+", default=[], metavar="NAME", help="packages that it has, such as transformers"
    )
    bare = commands.add_parser("check", help="measure, on the machine with nothing but torch")
    bare.add_argument("--wheels", type=Path, default=WHEELS)
    bare.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu rehearses with tiny shapes")
    bare.add_argument("--out", type=Path, help="write the table into this file too")
    bare.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    given = parser.parse_args()
    try:
        if given.command == "wheels":
            download(given.folder, given.python, given.present)
        elif not check(given.device, given.wheels.resolve(), given.out, given.parts):
            sys.exit(1)
    except FileNotFoundError as error:
        sys.exit(f"There is no {error.filename}; fill the folder first: scripts/gpu_check.sh --wheels.")
    except subprocess.CalledProcessError as error:
        sys.exit(f"This failed, with its reason above: {' '.join(error.cmd[:6])} ...")


if __name__ == "__main__":
    main()
