"""Sends weights out of the trainer's process.

1. `offer` keeps a version's tensors and returns its ticket, with the sums that a server's weights must have. The newest
   two versions are kept, so that an engine that is started again finds the one that others serve.
2. A thread waits at a store, on a port of its own, for the requests of servers and broadcasts to one after another.
   A server that breaks off is forgotten; it may ask again.
"""

from __future__ import annotations

import logging
import pickle
import socket
import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore

from ale.errors import TrainerError
from ale_torch.weights.checksums import sum_weights
from ale_torch.weights.receiver import TIMEOUT, join
from ale_torch.weights.tickets import BroadcastTicket, GlooTicket, IpcTicket, NcclTicket, TensorSpec

log = logging.getLogger("ale.weights")
KEPT = 2
POLL_S = 0.02


class WeightSender:
    """The versions that a trainer offers to the servers of its machine or, with another `host`, of its network."""

    def __init__(self, backend: str, host: str = "127.0.0.1") -> None:
        """Open the store. `backend` is `nccl` or `gloo`."""
        self._ticket: type[BroadcastTicket] = NcclTicket if backend == "nccl" else GlooTicket
        self._backend = backend
        self._host = host
        self._versions: dict[int, list[torch.Tensor]] = {}
        self._groups: dict[str, Any] = {}
        self._closed = threading.Event()
        with socket.socket() as listening:
            listening.bind((host, 0))
            listening.listen()
            self.port = listening.getsockname()[1]
            self._store = TCPStore(
                host, self.port, is_master=True, wait_for_workers=False, timeout=TIMEOUT,
                master_listen_fd=listening.detach(), use_libuv=False,
            )  # fmt: skip
        self._thread = threading.Thread(target=self._serve, name="ale-weights", daemon=True)
        self._thread.start()

    def offer(self, version: int, weights: Mapping[str, torch.Tensor]) -> BroadcastTicket:
        """Keep the tensors as a version and return its ticket; the caller does not change them any more."""
        specs = tuple(TensorSpec(n, str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in weights.items())
        self._versions[version] = list(weights.values())
        for old in sorted(self._versions)[:-KEPT]:
            del self._versions[old]
        return self._ticket(self._host, self.port, version, specs, sum_weights(weights))

    def close(self) -> None:
        """End the thread, after what it is sending, and drop all versions."""
        self._closed.set()
        self._thread.join()
        self._versions.clear()
        self._groups.clear()

    def _serve(self) -> None:
        number = 1
        while not self._closed.is_set():
            if not self._store.check([f"request/{number}"]):  # waiting with a limit writes a warning each time
                self._closed.wait(POLL_S)
                continue
            request = self._store.get(f"request/{number}").decode()
            try:
                self._answer(request)
            except Exception:  # that server broke off; the others are still there
                log.warning("a server broke off while it took new weights (%s)", request, exc_info=True)
                self._groups.pop(request.split()[1], None)
            number += 1

    def _answer(self, request: str) -> None:
        name, group, size, version, backend = request.split()
        tensors = self._versions.get(int(version))
        if tensors is None or backend != self._backend:
            kept = ", ".join(map(str, self._versions)) or "none"
            self._store.set(f"answer/{name}", f"it has the versions {kept}, by {self._backend}")
            return
        self._store.set(f"answer/{name}", "yes")
        if group not in self._groups:
            self._groups[group] = join(backend, self._store, group, 0, int(size) + 1, self._host)
        for tensor in tensors:
            self._groups[group].broadcast(tensor.contiguous(), 0).wait()


def share_by_ipc(version: int, weights: Mapping[str, torch.Tensor]) -> IpcTicket:
    """Return a ticket by which another process opens these tensors; they must stay alive until it has. Raises
    `TrainerError` if they are not on a GPU."""
    from torch.multiprocessing import reductions

    device = next(iter(weights.values())).device
    if device.type != "cuda":
        raise TrainerError("The transport 'ipc' shares the memory of a GPU; the trainer computes on the CPU.")
    reduce_tensor: Any = reductions.reduce_tensor
    handles = [(name, *reduce_tensor(tensor)) for name, tensor in weights.items()]
    gpu = str(torch.cuda.get_device_properties(device).uuid)
    return IpcTicket(version, gpu, pickle.dumps(handles), sum_weights(weights))
