"""`ale endpoint relay`: the programs that run inside a sandbox, printed."""

from __future__ import annotations

import sys

from ale.endpoint.relays import script


def relay(name: str) -> None:
    """Print one. Raises `ConfigError` for one that there is not."""
    sys.stdout.write(script(name))
