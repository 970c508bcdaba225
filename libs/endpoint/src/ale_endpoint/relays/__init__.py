"""Programs for the inside of a sandbox: each is one file that needs nothing of ALE, and is printed by `ale endpoint
relay`.

1. `relay.py`, `relay.sh` and `relay.mjs` listen on loopback and hand each connection to the endpoint's Unix socket, for
   a sandbox that has no network but the socket's folder. They do the same; the image decides which one can run.
2. `files` needs no socket: `file_service.py`, with `pending_requests.py` and `request_log.py`, writes each request to a
   log, in which `file_protocol.py` answers it.
"""

from __future__ import annotations

import ast
from importlib.resources import files

from ale.errors import ConfigError

SCRIPTS = {
    "python": ("relay.py",),
    "shell": ("relay.sh",),
    "node": ("relay.mjs",),
    "log": ("request_log.py",),
    "files": ("request_log.py", "pending_requests.py", "file_service.py"),
}


def script(name: str) -> str:
    """The text of a program. Raises `ConfigError` for one that there is not."""
    if name not in SCRIPTS:
        raise ConfigError(f"There is no relay {name!r}; there are {', '.join(SCRIPTS)}.")
    lowest, *upper = [(files(__name__) / part).read_text("utf-8") for part in SCRIPTS[name]]
    if not upper:
        return lowest
    return lowest[: lowest.index("# --- the command line")] + "".join(map(_without_own_imports, upper))


def _without_own_imports(text: str) -> str:
    """A part without its imports from the parts above it."""
    lines = text.splitlines(keepends=True)
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(("__future__", __name__)):
            first, last = node.lineno - 1, node.end_lineno or node.lineno
            lines[first:last] = [""] * (last - first)
    return "".join(lines)
