"""Programs for the inside of a sandbox: each is one file that needs nothing of ALE, and is printed by `ale endpoint relay`.

1. `relay.py`, `relay.sh` and `relay.mjs` listen on loopback and hand each connection to the endpoint's Unix socket, for a
   sandbox that has no network but the socket's folder. They do the same; which one is used is a matter of what the image has.
2. `files.py` needs no socket either: it writes each request to a log and waits for its answer there (`file_protocol.py`).
"""

from __future__ import annotations

from importlib.resources import files

from ale.errors import ConfigError

SCRIPTS = {"python": "relay.py", "shell": "relay.sh", "node": "relay.mjs", "files": "files.py"}


def script(name: str) -> str:
    """The text of a program. Raises `ConfigError` for one that there is not."""
    if name not in SCRIPTS:
        raise ConfigError(f"There is no relay {name!r}; there are {', '.join(SCRIPTS)}.")
    return (files(__name__) / SCRIPTS[name]).read_text("utf-8")
