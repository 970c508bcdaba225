"""A Python that runs in any Linux container: this one's interpreter with exactly what the resident imports.

An image need not hold a Python, nor the same C library: the dynamic loader comes along too, and is what is started. The
bundle is a folder of some 30 MB that containers see read-only at `/.ale`; their processes share its pages.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from ale.errors import ConfigError
from ale_resident.program import INSIDE, compile_module, resident_command, write_program

PLACE = "/.ale"
CONTROL, GATE = f"{PLACE}/control", f"{PLACE}/gate"
"""Where the folders with the sockets to the host are mounted: the resident's own, and the network's."""
EXTRA = "encodings.ascii, encodings.latin_1, encodings.utf_8, _socket"


def make_bundle(folder: Path) -> None:
    """Write the bundle into a new folder. Blocks for some 100 ms. Raises `ConfigError` where this Python cannot be bundled."""
    write_program(folder / "program")
    (folder / "control").mkdir()
    (folder / "gate").mkdir()
    executable = os.path.realpath(sys.executable)
    names = ", ".join(f"ale_resident.inside.{module.stem}" for module in INSIDE if module.stem != "__init__")
    code = (
        f"import sys; sys.path.insert(0, {str(folder / 'program')!r}); import {names}, {EXTRA}; "
        "print(*(m.__file__ for m in sys.modules.values() if getattr(m, '__file__', None)), sep='\\n')"
    )
    modules = run([executable, "-I", "-S", "-c", code]).splitlines()
    for module in modules:
        path = Path(module)
        if not path.is_relative_to(sys.base_prefix):
            continue  # of the program itself
        target = folder / path.relative_to(sys.base_prefix)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        if path.suffix == ".py":
            compile_module(target)
    (folder / "bin").mkdir()
    shutil.copy(executable, folder / "bin" / "python3")
    (folder / "so").mkdir()
    for library in libraries([executable, *(m for m in modules if m.endswith(".so"))]):
        shutil.copy(library, folder / "so" / os.path.basename(library))
    if not any((folder / "so").glob("ld*")):
        raise ConfigError(f"The Python {executable} cannot be taken into containers: it is not linked dynamically.")


def libraries(programs: list[str]) -> set[str]:
    """The shared libraries of programs, the dynamic loader among them."""
    found: set[str] = set()
    for program in programs:
        for line in run(["ldd", program]).splitlines():
            path = re.search(r"(/\S+)", line.rpartition("=>")[2])
            if path is not None:
                found.add(path[1])
    return found


def run(command: list[str]) -> str:
    """Standard output of a program of this machine. Raises `ConfigError`."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{command[0]} cannot be run: {error}.") from error
    return done.stdout


def bundled_command(folder: Path) -> list[str]:
    """What a container starts: the loader, the interpreter, the resident."""
    (loader,) = sorted((folder / "so").glob("ld*"))[:1]
    python = [f"{PLACE}/so/{loader.name}", "--library-path", f"{PLACE}/so", f"{PLACE}/bin/python3"]
    return resident_command(python, f"{PLACE}/program", f"{CONTROL}/socket")
