"""The frames between the host and the resident process of a sandbox.

A frame is `call id (u32) | kind (1 byte) | length (u32) | payload`, big endian. A payload is a list of byte strings,
each behind its length (u32). There is nothing to execute in it, so the host may parse what comes out of a sandbox.
It imports nothing: `resident.py` uses it inside the sandbox, where every import costs start-up time.
"""

from __future__ import annotations

HEADER_BYTES = 9
INIT, EXEC, CANCEL, WRITE, READ, KILL = b"I", b"X", b"C", b"W", b"R", b"K"
"""From the host: set up, run, cancel a run, write files, read a file, end all processes but the resident."""
USAGE = b"u"
"""From the host: what files take in memory, what came and went through the network."""
RESET = b"N"
"""From the host: be as new, with another environment."""
PART = b"L"
"""From the host: let the connection go, and make another one once the host listens again (`parting.py`)."""
STREAM, ACK = b"S", b"A"
"""From the host: run, and hand the output out as it comes (`pieces.py`); more of it may come, so much."""
SHELL, RUN = b"H", b"U"
"""From the host: open a shell (`shells.py`), a call that lasts until it is cancelled; run a command in one."""
TREE = b"T"
"""From the host: begin or go on with a tree of files (`transfers.py`); a call of many frames."""
DONE, FAILED, DATA = b"E", b"F", b"D"
"""From the resident: a call's answer, a call's failure (errno, text), a piece of a file."""
PIECE, PIECE_COST = b"P", 256
"""From the resident: a piece of a stream (1 or 2, bytes), and what it costs of the host's grant besides its bytes."""


def pack(fields: list[bytes]) -> bytes:
    """A payload from its fields."""
    parts: list[bytes] = []
    for field in fields:
        parts += (len(field).to_bytes(4, "big"), field)
    return b"".join(parts)


def unpack(payload: bytes) -> list[bytes]:
    """The fields of a payload; `ValueError` where it is cut short."""
    fields: list[bytes] = []
    at, end = 0, len(payload)
    while at < end:
        size = int.from_bytes(payload[at : at + 4], "big")
        at += 4 + size
        if at > end:
            raise ValueError("a frame of the sandbox is cut short")
        fields.append(payload[at - size : at])
    return fields


def frame(call: int, kind: bytes, fields: list[bytes]) -> bytes:
    """A whole frame."""
    payload = pack(fields)
    return call.to_bytes(4, "big") + kind + len(payload).to_bytes(4, "big") + payload


def take_frame(buffer: bytearray) -> tuple[int, bytes, bytes] | None:
    """Cut the first whole frame off `buffer`; None where it has not all come yet."""
    if len(buffer) < HEADER_BYTES:
        return None
    size = int.from_bytes(buffer[5:HEADER_BYTES], "big")
    if len(buffer) < HEADER_BYTES + size:
        return None
    head = bytes(buffer[:5])
    payload = bytes(buffer[HEADER_BYTES : HEADER_BYTES + size])
    del buffer[: HEADER_BYTES + size]
    return int.from_bytes(head[:4], "big"), head[4:], payload
