"""Answers cases one after the other, each in a forked process: `python forked_cases.py PROGRAM ARGUMENTS < CASES`.

A server's Python runs it, without ALE's packages, so this file imports nothing but Python's own. PROGRAM is a file with
a function `serve`, which is imported once. A case is a line of JSON. What `serve` returns for it, or `{"error": ...}`,
is written to the file that the case names as `answer`; if the case ends its process, none is. Then `done` is printed.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import sys
from collections.abc import Callable
from typing import Any


def serve_cases(serve: Callable[[dict[str, Any]], Any]) -> None:
    """Answer each case."""
    out = os.dup(1)
    os.dup2(2, 1)  # servers write where they like
    for line in sys.stdin:
        case = json.loads(line)
        child = os.fork()
        if not child:
            os.setpgid(0, 0)
            try:
                answer: Any = serve(case)
            except BaseException as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            with open(case["answer"], "w", encoding="utf-8") as file:
                json.dump(answer, file)
            os._exit(0)
        os.waitpid(child, 0)
        with contextlib.suppress(ProcessLookupError):  # there may be processes of its own left
            os.killpg(child, signal.SIGKILL)
        os.write(out, b"done\n")


if __name__ == "__main__":
    del sys.argv[0]  # the program sees its own
    serve_cases(runpy.run_path(sys.argv[0])["serve"])
