"""The shell text that starts one process of `envd`, and what it prints before the process begins.

1. It prints one line, a random word and the process id, and then becomes the program by `exec`, so the id stays. The
   word keeps a program's own output apart, whatever the environment makes the shell print.
2. Standard input that is written later comes through a pipe. A `sleep`, which another command has left behind
   (`OPEN_INPUT`), holds it open: `/proc/ID/fd/1` is the pipe, and the end of the `sleep` is the end of the input. The
   pipe has a name only for a moment, and the `sleep` is no child of the program.
3. A terminal is made by `script` (util-linux), and the line is printed inside it, with the terminal's name.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from uuid import uuid4

MOST_BYTES = 1 << 20
OPEN_INPUT = """pipe=$(mktemp -u) && mkfifo -m 600 "$pipe" && exec 3<>"$pipe" && rm -f "$pipe" || exit 1
sleep 2147483647 >&3 2>/dev/null </dev/null 3>&- & echo $!"""
"""Makes a pipe and prints the id of the process that holds it."""
NEED_SCRIPT = """command -v script >/dev/null || {
  echo "a terminal needs the program script (util-linux), which the sandbox lacks" >&2; exit 1
}
"""


@dataclass(frozen=True, slots=True)
class Started:
    """What the line says."""

    pid: int
    terminal: str | None


class StartScript:
    """The text for one process, and the reader of its first line."""

    def __init__(self, words: list[str], *, holder: int | None, size: tuple[int, int] | None) -> None:
        self._mark = uuid4().hex
        self._read = b""
        program = f"exec {shlex.join(words)}"
        source = "" if holder is None else f"exec 0</proc/{holder}/fd/1\n"
        if size is None:
            self.text = f'{source}echo {self._mark} "$$"\n{program}'
        else:
            rows, columns = size
            inside = f' "$(tty)"; stty rows {rows} cols {columns} 2>/dev/null; {program}'
            self.text = f'{NEED_SCRIPT}{source}exec script -qefc "echo {self._mark} $$"{shlex.quote(inside)} /dev/null'

    def read(self, data: bytes) -> tuple[Started | None, bytes]:
        """Take output until the line is there. Returns what it says, and the output before and after it. Raises
        `ValueError` for output that cannot be that of this text."""
        self._read += data
        if len(self._read) > MOST_BYTES:
            raise ValueError("its shell writes much before it begins")
        before, found, after = self._read.partition(self._mark.encode() + b" ")
        line, ended, rest = after.partition(b"\n")
        if not (found and ended):
            return None, b""
        pid, *terminal = line.decode("ascii", "replace").split()
        if not (pid.isascii() and pid.isdigit() and 0 < int(pid[:11]) < 1 << 32):
            raise ValueError("its shell does not say its process id")
        return Started(int(pid), terminal[0] if terminal else None), before + rest
