"""GEM, EnvHub and E2B's API use the sandbox service, and the service does not know them: only the application mounts
them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import ale_rock

PACKAGE = Path(ale_rock.__file__).parent
MOUNTED = ("ale_rock.app", "ale_rock.e2b", "ale_rock.envhub", "ale_rock.gem")


def imports_of(file: Path) -> set[str]:
    """The modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found


@pytest.mark.parametrize("folder", ["admin", "worker", "client", "http", "schemas", "ray_cluster"])
def test_the_service_imports_nothing_that_is_mounted_beside_it(folder: str) -> None:
    files = list((PACKAGE / folder).rglob("*.py"))
    assert files
    for file in files:
        for module in imports_of(file):
            assert not any(module == each or module.startswith(f"{each}.") for each in MOUNTED), (file.name, module)


def test_envhub_does_not_know_gem() -> None:
    for file in (PACKAGE / "envhub").glob("*.py"):
        assert not any(module.startswith("ale_rock.gem") for module in imports_of(file)), file.name
