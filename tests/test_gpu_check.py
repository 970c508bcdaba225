"""`scripts/gpu_check.sh --bare` is rehearsed on a CPU, with a Python that has nothing but torch and pip, so that on a
machine with a GPU nothing is left to be found but figures."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
from declared_packages import closure

REPOSITORY = Path(__file__).parents[1]
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
sys.path.insert(0, str(REPOSITORY / "scripts"))
from bare_machine import PARTS, measure  # noqa: E402


def gpu_check(*arguments: str | Path, python: Path) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(REPOSITORY / "scripts/gpu_check.sh"), *map(str, arguments)]
    environment = {**os.environ, "PYTHON": str(python), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that sees torch, what torch needs, and pip."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = next((folder / "lib").glob("python*")) / "site-packages"
    for name in (*closure("torch", ""), "pip"):
        found = distribution(name)
        roots = {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
        for root in roots:
            (packages / root).symlink_to(found.locate_file(root))
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    done = gpu_check("--wheels", folder, "--python", PYTHON, python=Path(sys.executable))
    assert done.returncode == 0, done.stderr
    assert "wheels for Python" in done.stdout
    return folder


def test_every_part_runs_on_a_machine_with_nothing_but_torch(bare_python: Path, wheels: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.md"
    done = gpu_check("--bare", "--device", "cpu", "--wheels", wheels, "--out", table, python=bare_python)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.read_text().splitlines()[2:]]
    assert [part for part in PARTS if any(row[0] == part for row in rows)] == list(PARTS)
    assert not [row for row in rows if row[1] == "**failed**"]
    for what in ("one rank of FSDP2", "LoRA", "published by folder", "engine asleep", "GRPO step", "IPA step", "fused"):
        assert any(row[1].startswith(what) for row in rows), what


def test_a_part_that_fails_keeps_its_figures_and_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    figures, fault = measure("machine", Path(sys.executable), "cuda", tmp_path)  # which this machine lacks
    assert (figures, fault) == ([], "exit code 1")
    assert "nvidia-smi" in capfd.readouterr().out


def test_a_missing_wheel_is_named(bare_python: Path, tmp_path: Path) -> None:
    done = gpu_check("--bare", "--device", "cpu", "--wheels", tmp_path, python=bare_python)
    assert done.returncode == 1
    assert "hatchling" in done.stderr
    assert "Traceback" not in done.stderr
