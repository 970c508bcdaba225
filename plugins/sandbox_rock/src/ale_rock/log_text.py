"""The text of logs: worker and admin leave the same things out of it, and bound it in the same way."""

from __future__ import annotations

import re

_COMMAND = re.compile(r"^(\S+ (?:\(process \d+\) )?exec \d+(?: in shell [^:]*)?(?: as [^:]*)?): .*$", re.MULTILINE)
"""How a sandbox's journal notes a command (`ale_sandbox.host.journal`)."""


def without_commands(text: str) -> str:
    """Return a log without the text of commands, which may hold secrets: the database must hold none."""
    return _COMMAND.sub(r"\1: (the command is not kept)", text)


def the_end(text: str, most_bytes: int) -> str:
    """Return the last whole lines of a log that fit into `most_bytes` of UTF-8."""
    data = text.encode("utf-8", "replace")
    if len(data) <= most_bytes:
        return text
    return data[-most_bytes:].partition(b"\n")[2].decode("utf-8", "replace") if most_bytes else ""
