"""Bundles a Python that runs in any Linux container: this interpreter with exactly the modules that the resident
imports.

An image needs no Python and not the same C library: the bundle has its own dynamic loader, and a container starts that.
It is a folder of some 30 MB, mounted read-only in containers at `/.ale`; their processes share its memory pages.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ale.errors import ConfigError
from ale_sandbox.host.resident_program import module_names, resident_command, with_bytecode, write_files, write_program

PLACE = "/.ale"
CONTROL, GATE = f"{PLACE}/control", f"{PLACE}/gate"
"""Where the folders with the sockets to the host are mounted: the resident's, and the network gate's."""
EXTRA = "encodings.ascii, encodings.latin_1, encodings.utf_8, _socket"


def make_bundle(folder: Path) -> None:
    """Write the bundle into a new folder. Blocks for some 100 ms. Raises `ConfigError` if this Python cannot be
    bundled."""
    write_program(folder / "program")
    for name in ("control", "gate", "bin", "so"):
        (folder / name).mkdir()
    executable = os.path.realpath(sys.executable)
    modules, shared = needed_files(executable)
    write_files(folder, modules)
    shutil.copy(executable, folder / "bin" / "python3")
    for library in shared:
        shutil.copy(library, folder / "so" / os.path.basename(library))
    if not any((folder / "so").glob("ld*")):
        raise ConfigError(f"The Python {executable} cannot be bundled for containers: it is not linked dynamically.")


@functools.cache
def needed_files(executable: str) -> tuple[dict[str, bytes], frozenset[str]]:
    """Find what the resident needs of this Python: modules with their bytecode, by their paths below its prefix, and
    the paths of shared libraries. A process looks once (some 400 ms)."""
    names = ", ".join(module_names())
    with tempfile.TemporaryDirectory(prefix="ale-") as program:
        write_program(Path(program))
        code = (
            f"import sys; sys.path.insert(0, {program!r}); import {names}, {EXTRA}; "
            "print(*(m.__file__ for m in sys.modules.values() if getattr(m, '__file__', None)), sep='\\n')"
        )
        found = [Path(line) for line in run([executable, "-I", "-S", "-c", code]).splitlines()]
    # The others are modules of the resident itself.
    modules = [path for path in found if path.is_relative_to(sys.base_prefix)]
    files = {str(path.relative_to(sys.base_prefix)): path.read_bytes() for path in modules}
    return with_bytecode(files), libraries([executable, *(str(path) for path in modules if path.suffix == ".so")])


def libraries(programs: list[str]) -> frozenset[str]:
    """Find the shared libraries of programs, including the dynamic loader."""
    found: set[str] = set()
    for program in programs:
        for line in run(["ldd", program]).splitlines():
            path = re.search(r"(/\S+)", line.rpartition("=>")[2])
            if path is not None:
                found.add(path[1])
    return frozenset(found)


def run(command: list[str]) -> str:
    """Run a program of this machine and return its standard output. Raises `ConfigError`."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{command[0]} cannot be run: {error}.") from error
    return done.stdout


def bundled_command(folder: Path) -> list[str]:
    """Return the command that a container starts: loader, interpreter and resident."""
    (loader,) = sorted((folder / "so").glob("ld*"))[:1]
    python = [f"{PLACE}/so/{loader.name}", "--library-path", f"{PLACE}/so", f"{PLACE}/bin/python3"]
    return resident_command(python, f"{PLACE}/program", f"{CONTROL}/socket")
