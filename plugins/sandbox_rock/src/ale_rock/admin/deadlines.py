"""When sandboxes are due to be stopped, archived or deleted, without a timer or a task for each of them.

Each record lies in at most one bucket, which is a second wide. Using a sandbox does not move its record: when its
bucket is due and the record is not, the record goes into a later one. So a request costs nothing here, and a sandbox
that is gone leaves nothing behind.
"""

from __future__ import annotations

from ale_rock.admin.record import Record


class Deadlines:
    """Records by the second at which something is due."""

    def __init__(self) -> None:
        self._buckets: dict[int, set[Record]] = {}
        self._next: int | None = None

    def schedule(self, record: Record) -> None:
        """Put a record where its `due()` says, or take it out if nothing is due."""
        due = record.due()
        bucket = None if due is None else int(due) + 1
        if bucket == record.bucket:
            return
        if record.bucket is not None and (old := self._buckets.get(record.bucket)) is not None:
            old.discard(record)
            if not old:
                del self._buckets[record.bucket]
        record.bucket = bucket
        if bucket is not None:
            self._buckets.setdefault(bucket, set()).add(record)
            self._next = bucket if self._next is None else min(self._next, bucket)

    def take_due(self, now: float) -> list[Record]:
        """Return the records whose time has come; those whose time has moved are put further back."""
        if self._next is None:
            return []
        found: list[Record] = []
        for bucket in range(self._next, int(now) + 1):
            for record in self._buckets.pop(bucket, ()):
                record.bucket = None
                due = record.due()
                if due is not None and due <= now:
                    found.append(record)
                else:
                    self.schedule(record)
        self._next = min(self._buckets, default=None) if self._next <= int(now) else self._next
        return found
