"""The resident's program as it stands in a sandbox: a folder with a few modules and nothing else of ALE."""

from __future__ import annotations

import py_compile
import shutil
from pathlib import Path

from ale_resident import inside

INSIDE = sorted(Path(str(inside.__file__)).parent.glob("*.py"))
"""The modules, as files. They import the standard library and each other."""


def write_program(folder: Path) -> None:
    """Write the program, compiled, into a new folder."""
    package = folder / "ale_resident" / "inside"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    for module in INSIDE:
        shutil.copyfile(module, package / module.name)
    for source in package.parent.rglob("*.py"):
        compile_module(source)


def compile_module(source: Path) -> None:
    """Compile a module beside itself; by hash and unchecked: no sandbox looks at time stamps, nor can it write there."""
    py_compile.compile(str(source), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)


def resident_command(python: list[str], program: str, *arguments: str) -> list[str]:
    """The command line of the resident, with the program in the folder `program`."""
    start = f"import sys; sys.path.insert(0, {program!r}); from ale_resident.inside.resident import main; main()"
    return [*python, "-I", "-S", "-c", start, *arguments]
