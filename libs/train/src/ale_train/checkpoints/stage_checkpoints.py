"""Checkpoints within a supervised stage, so that an interrupted one goes on where it was.

`checkpoints/<stage>_N` holds what the trainer saved after N optimizer steps. The newest one is kept, and the one that
the run went on from. The order of the data follows from the seed and the data, so nothing else is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from ale_train.checkpoints.checkpoint_folders import CHECKPOINTS, complete, finish_checkpoint, restore_newest_whole
from ale_train.models.whole_folders import remove
from ale_train.workbench.workbench import Workbench

T = TypeVar("T")


class StageCheckpoints:
    """Writes a checkpoint every `every` steps (0: only when the run is stopped), and restores the newest. Metrics of
    the stage count steps from `first`."""

    def __init__(self, bench: Workbench, stage: str, every: int, first: int) -> None:
        self._bench, self._stage, self._every, self._first = bench, stage, every, first
        self.done = 0
        """How many steps are done."""
        self._saved = 0
        """How many steps were done at the newest checkpoint."""
        self._from: Path | None = None
        """The checkpoint that was restored; the trainer may read its files again."""

    async def resume(self) -> int:
        """Restore the newest checkpoint of a resumed run, and delete the metrics of what came after it; returns how
        many steps are done. Raises `ConfigError` if there are checkpoints and none can be read."""
        if not self._bench.store.resumed:
            return 0
        folder, backend = self._bench.folder / CHECKPOINTS, self._bench.backend
        found = await restore_newest_whole(folder, self._stage, backend.restore, f"the stage {self._stage}")
        if found is not None:
            self.done, self._from, _ = found
            self._saved = self.done
            self._bench.progress.note(f"The stage {self._stage} goes on after step {self.done}.")
        after = (self._stage, self._first + self.done if self.done else 0)
        self._bench.store.change(("DELETE FROM metrics WHERE stage = ? AND step >= ?", [after]))
        return self.done

    async def step(self, work: Coroutine[Any, Any, T]) -> T:
        """Make the next step, and the checkpoint that is due. If the run is stopped meanwhile, both are finished, and a
        checkpoint is left."""
        step = asyncio.ensure_future(self._step(work))
        try:
            return await asyncio.shield(step)
        except asyncio.CancelledError:
            await step
            await self._save()
            raise

    async def last(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do what comes after the last step. If the run is stopped meanwhile, a checkpoint is left."""
        try:
            await work
        except asyncio.CancelledError:
            await self._save()
            raise

    async def _step(self, work: Coroutine[Any, Any, T]) -> T:
        made = await work
        self.done += 1
        if self._every and self.done % self._every == 0:
            await self._save()
        return made

    async def _save(self) -> None:
        if self._saved == self.done:
            return
        folder = self._bench.folder / CHECKPOINTS
        making, target = folder / f".making_{self._stage}", folder / f"{self._stage}_{self.done}"
        await asyncio.to_thread(remove, making)
        await self._bench.backend.save(making)
        await asyncio.to_thread(finish_checkpoint, making, target)
        self._saved = self.done
        for _, old in complete(folder, self._stage):
            if old not in (target, self._from):
                await asyncio.to_thread(remove, old)
