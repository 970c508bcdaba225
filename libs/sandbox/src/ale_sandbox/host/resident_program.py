"""Writes the resident's program for a sandbox: a folder with a few modules and nothing else of ALE."""

from __future__ import annotations

import functools
import importlib.util
import marshal
from collections.abc import Mapping
from pathlib import Path

from ale_sandbox import resident

FOLDER = Path(str(resident.__file__)).parent
MODULES = sorted(FOLDER.rglob("*.py"))
"""The files of its modules. They import only the standard library and each other."""
UNCHECKED_HASH = (1).to_bytes(4, "little")
"""The flags in the header of bytecode files."""


def write_program(folder: Path) -> None:
    """Write the compiled program into a new folder."""
    write_files(folder / "ale_sandbox", program_files())


@functools.cache
def program_files() -> dict[str, bytes]:
    """The program's sources and bytecode, by their paths in its package. A process compiles them once (some 80 ms)."""
    sources = {f"{FOLDER.name}/{module.relative_to(FOLDER)}": module.read_bytes() for module in MODULES}
    return with_bytecode({"__init__.py": b"", **sources})


def with_bytecode(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """These files and the bytecode of the modules among them. Its hash is unchecked (PEP 552), because sandboxes
    neither compare time stamps nor can write there."""
    found = dict(files)
    for name, source in files.items():
        if name.endswith(".py"):
            code = compile(source, name, "exec", dont_inherit=True)
            header = importlib.util.MAGIC_NUMBER + UNCHECKED_HASH + importlib.util.source_hash(source)
            found[importlib.util.cache_from_source(name)] = header + marshal.dumps(code)
    return found


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files below a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def module_names() -> list[str]:
    """List the names of the modules, without packages."""
    names = [module.relative_to(FOLDER.parent).with_suffix("") for module in MODULES if module.stem != "__init__"]
    return [".".join((FOLDER.parent.name, *name.parts)) for name in names]


def resident_command(python: list[str], program: str, *arguments: str) -> list[str]:
    """Return the resident's command line; `program` is the folder of its program."""
    start = f"import sys; sys.path.insert(0, {program!r}); from ale_sandbox.resident.loop import main; main()"
    return [*python, "-I", "-S", "-c", start, *arguments]
