"""Keeps a worker free for a sandbox that waits too long: otherwise small sandboxes would take each piece of room it
needs.

1. A sandbox that found no room for `hold_s` gets a worker on which it would fit if nothing else ran there. Other
   sandboxes of its priority or below are no longer placed on that worker. All other workers serve as before, and the
   sandbox itself is placed wherever there is room first.
2. At most a quarter of the workers are kept free, and no worker that a sandbox further ahead in the queue could use,
   since that one has waited longer.
3. A sandbox that fits on no worker at all keeps none free. It waits until its start has taken too long.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from ale_rock.admin.record import Record
from ale_rock.admin.workers import Worker

SHARE = 4
LOOK = 32
"""How many of the next sandboxes are looked at."""


class Reservations:
    """Which worker is kept free for which record."""

    def __init__(self, workers: Mapping[str, Worker], hold_s: float) -> None:
        self._workers, self._hold_s = workers, hold_s
        self._for: dict[str, Record] = {}
        """Records by the name of the worker that is kept free for them."""

    def closed_to(self, record: Record) -> set[str]:
        """Return the workers that are kept free for others."""
        return {name for name, other in self._for.items() if other is not record and record.priority <= other.priority}

    def drop(self, record: Record) -> None:
        """End the reservation of a record that has got a worker."""
        for name in [name for name, other in self._for.items() if other is record]:
            del self._for[name]

    def renew(self, stuck: Sequence[Record], waiting: Collection[Record]) -> None:
        """Choose again. `stuck` are the records that found no room, in the order in which they are next; `waiting` are
        all that wait."""
        for name, record in list(self._for.items()):
            worker = self._workers.get(name)
            if record not in waiting or worker is None or not worker.could_fit(record.need):
                del self._for[name]
        most, now = max(1, len(self._workers) // SHARE), time.time()
        ahead: list[Record] = []
        for record in [record for record in stuck if record in waiting][:LOOK]:
            if len(self._for) >= most:
                return
            if now - record.asked <= self._hold_s:
                ahead.append(record)
            elif record not in self._for.values():
                fitting = [worker for worker in self._workers.values() if self._is_free(worker, record, ahead)]
                if fitting:
                    self._for[min(fitting, key=Worker.load).name] = record

    def _is_free(self, worker: Worker, record: Record, ahead: Collection[Record]) -> bool:
        return (
            worker.name not in self._for
            and worker.name not in record.refused_by
            and worker.could_fit(record.need)
            and not any(worker.could_fit(other.need) for other in ahead)
        )
