"""Receives weights in a process of an inference server. It needs torch alone, so that it runs in any server's Python.

A rank joins the group of its server through the trainer's store: rank 0 writes a request, and the trainer answers it by
broadcasting the tensors of a version in their order. The group stays connected for the next versions.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore, Store

TIMEOUT = timedelta(seconds=120)
_groups: dict[tuple[str, int, str, str], tuple[Store, Any]] = {}


def receive(
    rank: int,
    device: torch.device,
    *,
    backend: str,
    host: str,
    port: int,
    version: int,
    group: str,
    request: str,
    size: int,
    tensors: Sequence[Sequence[Any]],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the name and the tensor of each weight of a version; `rank` (from 0) is that of this process among the
    `size` ranks of the server, and `request` is new each time. Raises `RuntimeError` if the trainer does not answer, or
    no longer has the version."""
    key = (host, port, backend, group)
    store = _groups[key][0] if key in _groups else TCPStore(host, port, is_master=False, timeout=TIMEOUT)
    if rank == 0:
        number = store.add("requests", 1)
        store.set(f"request/{number}", f"{request} {group} {size} {version} {backend}")
    if (answer := store.get(f"answer/{request}").decode()) != "yes":
        raise RuntimeError(f"the trainer does not send version {version}: {answer}")
    if key not in _groups:
        _groups[key] = (store, join(backend, store, group, rank + 1, size + 1, own_address(host, port)))
    process_group = _groups[key][1]
    try:
        for name, dtype, shape in tensors:
            value = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
            process_group.broadcast(value, 0).wait()
            yield name, value
    except BaseException:
        _groups.pop(key, None)  # what is left of this version would be taken for the next one
        raise


def join(backend: str, store: Store, group: str, rank: int, size: int, address: str) -> Any:
    """Return a process group of its own beside those of the server; rank 0 is the trainer. With gloo the others reach
    this process at `address`; NCCL looks for the network by itself."""
    own = PrefixStore(f"group/{group}", store)
    group_class: Any = dist.ProcessGroupGloo if backend == "gloo" else dist.ProcessGroupNCCL
    options = group_class._Options() if backend == "gloo" else group_class.Options()
    options._timeout = TIMEOUT
    if backend == "gloo":
        options._devices = [group_class.create_device(hostname=address)]
    return group_class(own, rank, size, options)


def own_address(host: str, port: int) -> str:
    """Return the address of this machine that the other one, at `host`, sees."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unsent:
        unsent.connect((host, port))
        return str(unsent.getsockname()[0])


def open_handles(handles: bytes, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the name and the tensor of each weight that another process shares by CUDA IPC; `device` is this process's
    number of the GPU, which the other may count differently."""
    for name, rebuild, arguments in pickle.loads(handles):
        here = list(arguments)
        here[6] = device.index or 0  # `storage_device` of torch.multiprocessing.reductions.rebuild_cuda_tensor
        yield name, rebuild(*here)
