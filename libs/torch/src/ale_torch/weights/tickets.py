"""The tickets by which an engine fetches weights from a trainer's process. They are plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar
from uuid import uuid4

Sums = Mapping[str, Mapping[str, tuple[tuple[int, ...], int, tuple[int, ...]]]]
"""For each dtype in which a server may hold the weights, and each tensor: its shape, the sum of its bits, and for each
dimension the sum of its bits times their position (`checksums.py`)."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The Hugging Face name of a tensor, its dtype as torch names it (`bfloat16`), and its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BroadcastTicket:
    """The address of the trainer's store, where a receiver asks for a version, and the tensors in the order in which
    they are sent. The trainer keeps the newest two versions."""

    transport: ClassVar[str] = ""
    host: str
    port: int
    version: int
    tensors: tuple[TensorSpec, ...]
    sums: Sums

    def as_request(self, group: str, size: int) -> dict[str, Any]:
        """Return the arguments of `receiver.receive` for a server of `size` ranks, as JSON can hold them. `group` names
        the server; it keeps the connection for the next versions."""
        return {
            "backend": self.transport,
            "host": self.host,
            "port": self.port,
            "version": self.version,
            "group": group,
            "request": uuid4().hex,
            "size": size,
            "tensors": [list(asdict(tensor).values()) for tensor in self.tensors],
        }


@dataclass(frozen=True, slots=True)
class NcclTicket(BroadcastTicket):
    """Weights that NCCL broadcasts between GPUs."""

    transport: ClassVar[str] = "nccl"


@dataclass(frozen=True, slots=True)
class GlooTicket(BroadcastTicket):
    """Weights that gloo broadcasts between CPUs."""

    transport: ClassVar[str] = "gloo"


@dataclass(frozen=True, slots=True)
class IpcTicket:
    """Weights in the memory of a GPU that the engine's process uses too. `handles` is the pickled list of a tensor's
    name and what opens it; it works once for each process, as long as the trainer keeps the version."""

    transport: ClassVar[str] = "ipc"
    version: int
    device: str
    """The GPU's UUID."""
    handles: bytes
    sums: Sums
