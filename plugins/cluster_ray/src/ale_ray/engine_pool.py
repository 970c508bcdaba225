"""The pool of the engines' actors. Each change of it is sent to the rollout workers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from ale.registry.validation import describe_error
from ale.specs.engine import PolicyVersion, Tokenizer
from ale_engines.pool.engines import Engines
from ale_ray.engine_replica import RayReplica
from ale_ray.rollout_workers import RolloutWorkers
from ale_ray.routed_engine import EngineTable, TableRow

log = logging.getLogger("ale.cluster")


class RayEngines(Engines):
    """A pool whose replicas are actors; it sends the workers a new table after each change."""

    def __init__(
        self,
        replicas: list[RayReplica],
        note: Callable[[str], None],
        event: Callable[..., None],
        changed: Callable[[], None],
    ) -> None:
        """`note` and `event`: see `Engines`. `changed` is called after each change that the workers know."""
        super().__init__(replicas, note, event)
        self.workers: RolloutWorkers | None = None
        self._report_change = changed
        self._number = 0
        self._sending: set[asyncio.Task[None]] = set()
        self._due = False
        """Whether a table will be sent as soon as what happens now has happened."""
        self.listeners.append(self._changed)
        self._members.deliver_changes = self._deliver

    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        await super().load_model(folder, tokenizer)
        if self.workers is not None:
            await self.workers.use_model(folder)
        await self.send_table()

    async def load_weights(self, policy: PolicyVersion) -> None:
        """The workers know the new version when this returns."""
        await super().load_weights(policy)
        await self.send_table()
        if self.workers is not None:
            self.workers.report_states()

    def _changed(self) -> None:
        """Send a new table soon: what changes together is sent together."""
        if not self._due:
            self._due = True
            task = asyncio.get_running_loop().create_task(self._send_soon())
            self._sending.add(task)
            task.add_done_callback(self._forget_sending)

    async def _deliver(self) -> None:
        """Return when the workers have the tables that are due."""
        if self._sending:
            await asyncio.wait(self._sending)

    async def _send_soon(self) -> None:
        await asyncio.sleep(0)
        self._due = False
        await self.send_table()

    def _forget_sending(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("the state of the engines did not get to all workers: %s", describe_error(error))

    async def send_table(self) -> None:
        """Give the workers the state of the engines as it is now."""
        self._number += 1
        actors = {replica.name: replica for replica in self.replicas}
        rows = []
        for status in self.replica_statuses():
            replica = actors[status.name]
            assert isinstance(replica, RayReplica)
            rows.append(
                TableRow(
                    name=status.name,
                    actor=replica.actor,
                    slots=status.slots,
                    state=status.state,
                    version=status.version,
                    max_context=status.max_context,
                )
            )
        refusal = self._members.find_refusal()
        if self.workers is not None:
            said = "" if refusal is None else str(refusal)
            await self.workers.use_engines(EngineTable(self._number, tuple(rows), self.version, said))
        self._report_change()

    async def close(self) -> None:
        for task in self._sending:
            task.cancel()
        await super().close()
