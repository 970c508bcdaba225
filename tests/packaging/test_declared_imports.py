"""Each package, and its tests, use nothing that the package does not declare, so that both run where it is installed
alone: `make test-alone` shows it from wheels."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from declared_packages import Package, closure, our_packages
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TESTED = [package for package in our_packages().values() if package.tests.is_dir()]
IF_INSTALLED = {
    # To look at what an engine or a trainer wrote, and for nodes of Ray.
    "ale-testing": {"numpy", "ray", "safetensors", "torch", "transformers"},
    "ale-plugin-data": {"datasets", "pyarrow"},  # its extras: formats that most users do not have
    "ale-plugin-rock": {"ray"},  # its extra: `--cluster ray` says so where it is missing
    "ale-plugin-rewards": {"ale_endpoint", "math_verify"},  # the rewards `judge` and `math` say so where it is missing
    "ale-plugin-openhands": {"openhands"},  # in the agent's own environment, where this file runs
    # What runs in the servers' own environments imports what these have.
    "ale-plugin-engine-sglang": {"sglang", "torch", "uvicorn"},
    "ale-plugin-engine-vllm": {"msgspec", "safetensors", "starlette", "torch", "uvloop", "vllm"},
    "ale-plugin-trainer-torch": {"torchao"},  # its extra: `optimizer: adamw_8bit` says so where it is missing
    # `model.scratch` says so where ale-torch is missing; a tokenizer is compared only where transformers is there.
    "ale-train": {"ale_torch", "transformers"},
}
"""What a package uses only where it is installed anyway."""
IN_OTHER_VENVS = {
    "ale-plugin-engine-sglang": {"ale_sglang_server", "sglang"},
    "ale-plugin-engine-vllm": {"ale_vllm_worker", "vllm"},
    "ale-plugin-env-loop": {"gem", "openenv", "skyrl_gym"},
    "ale-plugin-trainer-torch": {"torchao"},
}
"""What files of a package's tests import from a venv, or a folder, which the tests make, or an engine's server has."""


@cache
def providers() -> dict[str, set[str]]:
    """The packages that each module comes from."""
    found = {module: {canonicalize_name(name) for name in names} for module, names in packages_distributions().items()}
    return found | {module: {package.name} for package in our_packages().values() for module in package.modules}


def imported(path: Path) -> Iterator[str]:
    """The first part of each module that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("package", TESTED, ids=lambda package: package.name)
def test_the_tests_of_a_package_import_what_it_declares(package: Package) -> None:
    declared, files = closure(package.name), sorted(package.tests.rglob("*.py"))
    own = {path.stem for path in files} | sys.stdlib_module_names | IN_OTHER_VENVS.get(package.name, set())
    own |= {"support"}  # tests/support, which `make test-alone` puts beside them
    undeclared = {
        f"{path.relative_to(package.folder)} imports {module}"
        for path in files
        for module in imported(path)
        if module not in own and not providers().get(module, set()) & declared
    }
    assert not undeclared, f"{package.name} declares these neither as dependencies nor in its extra `test`"


@pytest.mark.parametrize("package", our_packages().values(), ids=lambda package: package.name)
def test_a_package_declares_what_it_imports(package: Package) -> None:
    declared = {canonicalize_name(Requirement(line).name) for line in package.requirements} | {package.name}
    undeclared = {
        f"{path.relative_to(package.folder)} imports {module}"
        for path in (package.folder / "src").rglob("*.py")
        for module in set(imported(path)) - sys.stdlib_module_names - IF_INSTALLED.get(package.name, set())
        if not module.startswith("_") and not providers().get(module, set()) & declared
    }
    assert not undeclared
