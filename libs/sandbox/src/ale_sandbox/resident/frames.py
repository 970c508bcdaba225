"""Packs and unpacks the frames between the host and a sandbox's resident.

A frame is `call id (u32) | kind (1 byte) | length (u32) | payload`, big endian. A payload is a list of byte strings,
each after its length (u32). Nothing in it is executed, so the host can safely parse what comes out of a sandbox.
This module imports nothing, because the resident uses it too and every import costs start-up time.
"""

from __future__ import annotations

HEADER_BYTES = 9
INIT, EXEC, CANCEL, WRITE, READ, KILL = b"I", b"X", b"C", b"W", b"R", b"K"
"""From the host: set up, run, cancel a run, write files, read a file, kill all processes but the resident."""
USAGE = b"u"
"""From the host: report the size of files in memory and the network traffic."""
RESET = b"N"
"""From the host: reset the sandbox, with another environment."""
RECONNECT = b"L"
"""From the host: close the connection, and make a new one once the host listens again (`reconnect.py`)."""
STREAM, ACK = b"S", b"A"
"""From the host: run and stream the output (`output_stream.py`); grant a stream more bytes."""
SHELL, RUN = b"H", b"U"
"""From the host: open a shell (`shells/`), a call that lasts until it is cancelled; run a command in one."""
TREE = b"T"
"""From the host: begin or continue the transfer of a tree (`trees/transfers.py`); a call of many frames."""
CONNECT = b"O"
"""From the host: connect to a port in the sandbox, and send to it (`network/ports.py`); a call of many frames. `ACK`
then grants bytes in both directions."""
DONE, FAILED, DATA = b"E", b"F", b"D"
"""From the resident: a call's answer, a call's failure (errno, text), a piece of a file."""
PIECE, PIECE_COST = b"P", 256
"""From the resident: a piece of a stream (1 or 2, bytes), and what it costs of the grant besides its bytes."""


def pack(fields: list[bytes]) -> bytes:
    """Pack fields into a payload."""
    parts: list[bytes] = []
    for field in fields:
        parts += (len(field).to_bytes(4, "big"), field)
    return b"".join(parts)


def unpack(payload: bytes) -> list[bytes]:
    """Unpack the fields of a payload. Raises `ValueError` if it is cut short."""
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
    """Make a whole frame."""
    payload = pack(fields)
    return call.to_bytes(4, "big") + kind + len(payload).to_bytes(4, "big") + payload


def take_frame(buffer: bytearray) -> tuple[int, bytes, bytes] | None:
    """Cut the first whole frame off `buffer`; return None if it has not fully arrived."""
    if len(buffer) < HEADER_BYTES:
        return None
    size = int.from_bytes(buffer[5:HEADER_BYTES], "big")
    if len(buffer) < HEADER_BYTES + size:
        return None
    head = bytes(buffer[:5])
    payload = bytes(buffer[HEADER_BYTES : HEADER_BYTES + size])
    del buffer[: HEADER_BYTES + size]
    return int.from_bytes(head[:4], "big"), head[4:], payload
