"""The driver of a trainer: it calls its ranks, wherever they are, from a thread of its own.

The event loop stays free, and no two calls use the model at once. If a call is cancelled, its work still finishes in
that thread, and the next call waits for it.

Ranks are processes beside this one, or they are where `RankPlaces` of a cluster start them. How many there are and what
they compute on is then the cluster's setting, and this process asks its own torch for nothing.
"""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ale.errors import ConfigError, TrainerError
from ale.specs.driver import Driver
from ale.specs.engine import PolicyVersion
from ale.specs.ranks import RankPlaces, Workers
from ale.specs.trainer import Loss, PolicyRole, TrainBatch, TrainerBackend

CLOSE_S = 60.0
"""How long `close` waits for the current work before it ends the ranks by force; a rank may hang."""


class RankedTrainer(Driver, TrainerBackend):
    """A trainer whose work is done by `RankWorker`s. `name` is the name in a run file."""

    name: str
    transports: tuple[str, ...]
    _ranks: int
    _device: str
    """The number of ranks and their device, as `choose_ranks` returned them."""
    _thread: ThreadPoolExecutor | None = None
    _workers: Workers | None = None

    @property
    def place(self) -> str:
        """The device that it computes on, for people, such as `cuda:1`, or `cuda ×4` for four ranks with a GPU each."""
        return self._device if self._ranks == 1 else f"{self._device} ×{self._ranks}"

    @abstractmethod
    def make_workers(self) -> Workers:
        """Start the ranks; called in the training thread."""

    async def start(self) -> None:
        """Start the training thread, and the ranks."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ale-trainer")
        await asyncio.get_running_loop().run_in_executor(self._thread, self._start_workers)

    async def close(self) -> None:
        """End the ranks and the training thread, after the current work is finished or `CLOSE_S` have passed."""
        thread, self._thread = self._thread, None
        if thread is not None:
            finished = asyncio.create_task(asyncio.to_thread(thread.shutdown))
            await asyncio.wait([finished], timeout=CLOSE_S)
            if not finished.done() and self._workers is not None:
                self._workers.kill()
            await finished
        workers, self._workers = self._workers, None
        if workers is not None:
            await asyncio.to_thread(workers.close)

    async def load(self, folder: Path, policy: PolicyRole = "current") -> None:
        """The reference policy is on the trainer's device too."""
        await self._call("load", folder, policy)

    async def logprobs(self, batch: TrainBatch, policy: PolicyRole = "current") -> npt.NDArray[np.float32]:
        found: npt.NDArray[np.float32] = await self._call("logprobs", batch, policy)
        return found

    async def update(
        self, batch: TrainBatch, loss: Loss, *, lr: float | None = None, weight_decay: float | None = None
    ) -> dict[str, float]:
        totals: dict[str, float] = await self._call("update", batch, loss, lr, weight_decay)
        return totals

    async def publish(self, transport: str, folder: Path) -> PolicyVersion:
        """Weights in memory are copies; a folder has the tokenizer's files too."""
        if transport not in self.transports:
            raise TrainerError(
                f"The trainer '{self.name}' publishes weights by {' or '.join(self.transports)}, not by '{transport}'."
            )
        policy: PolicyVersion = await self._call("publish", transport, folder)
        return policy

    async def sleep(self) -> bool:
        """What is published by `ipc` or `nccl` stays."""
        given: bool = await self._call("sleep")
        return given

    async def save(self, folder: Path) -> None:
        """The tokenizer's files come along, so the folder serves as `model.path` too."""
        await self._call("save", folder)

    async def restore(self, folder: Path) -> None:
        """Ranks of another number or layout may have saved it."""
        await self._call("restore", folder)

    async def _call(self, method: str, *args: Any) -> Any:
        """Call a method of all ranks and return rank 0's answer."""
        if self._thread is None or self._workers is None:
            raise TrainerError(f"The trainer '{self.name}' is not running; use it inside 'async with trainer:'.")
        answers = await asyncio.get_running_loop().run_in_executor(self._thread, self._workers.call, method, *args)
        return answers[0]

    def hold_workers(self, workers: Workers) -> None:
        """Keep ranks that are not ready yet, so that `close` can end them."""
        self._workers = workers

    def _start_workers(self) -> None:
        """Set `_workers` in the thread itself, so that `close` finds them also if `start` was cancelled."""
        self._workers = self.make_workers()


def choose_ranks(ranks: int, device: str, places: RankPlaces | None) -> tuple[int, str]:
    """Return how many ranks there are and what they compute on, by the trainer's settings `ranks` and `device`, and by
    the cluster's if there is one. Raises `ConfigError`."""
    if places is None:
        from ale_torch.training.worker import pick_device

        return ranks, pick_device(device, ranks)
    if ranks not in (1, places.count):
        raise ConfigError(
            f"trainer.ranks is {ranks}, but cluster.trainer.ranks is {places.count}: on a cluster the latter "
            "counts. Leave trainer.ranks out, or set both to the same number."
        )
    if device not in ("auto", "cpu", places.device):
        given = "the GPU that it is given" if places.device == "cuda" else "no GPU"
        raise ConfigError(
            f"trainer.device is '{device}', but on the cluster each rank has {given} (cluster.trainer.devices). "
            "Set trainer.device to auto."
        )
    return places.count, "cpu" if device == "cpu" else places.device


def start_ranks(
    target: str,
    ranks: int,
    args: tuple[Any, ...],
    *,
    device: str,
    threads: int,
    launched: Callable[[Workers], None],
    places: RankPlaces | None = None,
) -> Workers:
    """Start the ranks in their places, or a process each beside this one. `threads` are the CPU threads of each; 0: its
    share of the cores. `launched`: see `RankPlaces.start`."""
    if places is not None:
        return places.start(target, args, threads=threads, launched=launched)
    from ale_torch.ranks import Ranks, backend_of

    each = threads or max(1, len(os.sched_getaffinity(0)) // ranks)
    return Ranks(target, ranks, args, threads=each, backend=backend_of(device), launched=launched)
