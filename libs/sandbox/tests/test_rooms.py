"""The rooms of the package: each imports those below it, and the program inside sandboxes imports itself alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import ale_sandbox
from ale_sandbox.host.resident_program import module_names, write_program

ROOMS = ("resident", "host", "network", "sandboxes", "containers", "commands")
"""The lowest first."""


def test_every_module_of_it_runs_where_nothing_but_the_standard_library_is(tmp_path: Path) -> None:
    write_program(tmp_path / "program")
    names = module_names()
    assert {"ale_sandbox.resident.loop", "ale_sandbox.resident.network.relay"} <= set(names)
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'program')!r}); import {', '.join(names)}"
    code += "; print(*sorted(m for m in sys.modules if m.startswith('ale_sandbox.resident.') and m.count('.') > 1))"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(names) <= set(done.stdout.split())
    assert list((tmp_path / "program").rglob("*.pyc")), "it is compiled, for no sandbox can write there"


def test_a_room_imports_only_those_below_it() -> None:
    package = Path(ale_sandbox.__file__).parent
    assert {path.parent.name for path in package.glob("*/*.py")} == set(ROOMS)
    upwards = [
        f"{path.relative_to(package)} imports {room}"
        for number, own in enumerate(ROOMS)
        for path in sorted((package / own).rglob("*.py"))
        for room in re.findall(r"(?:from|import) ale_sandbox\.(\w+)", path.read_text())
        if ROOMS.index(room) > number
    ]
    assert upwards == []
