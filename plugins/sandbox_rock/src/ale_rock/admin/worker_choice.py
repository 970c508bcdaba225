"""Which worker gets a sandbox: one that is able and has room; among these one that has the image; then the emptiest.

With many workers only a few are looked at, picked at random: the emptiest of a few is nearly the emptiest of all. All
are looked at if none of the few has room. A worker with the image takes as many starts at once as its limit allows, and
then other workers get the rest, so an image spreads to where it is needed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection

from ale_rock.admin.record import Need
from ale_rock.admin.workers import Worker

SAMPLE = 12


class WorkerChoice:
    """The workers, and which of them have which image."""

    def __init__(self) -> None:
        self._all = _Sampled()
        self._with_image: dict[str, _Sampled] = {}
        self._able: Counter[str] = Counter()
        """How many workers have an ability."""

    def add(self, worker: Worker) -> None:
        """Add a worker."""
        self._all.add(worker)
        self._able.update(worker.abilities or ())
        for image in worker.images:
            self._with_image.setdefault(image, _Sampled()).add(worker)

    def discard(self, worker: Worker) -> None:
        """Remove a worker."""
        if self._all.discard(worker):
            self._able.subtract(worker.abilities or ())
        self.set_images(worker, set())

    def set_images(self, worker: Worker, images: set[str]) -> None:
        """Set which images a worker has."""
        for image in worker.images - images:
            holders = self._with_image.get(image)
            if holders is not None:
                holders.discard(worker)
                if not holders.items:
                    del self._with_image[image]
        for image in images - worker.images:
            self._with_image.setdefault(image, _Sampled()).add(worker)
        worker.images = images

    def images(self) -> dict[str, int]:
        """Return on how many workers each image is."""
        return {image: len(holders.items) for image, holders in self._with_image.items()}

    def choose(self, need: Need, image: str | None, without: Collection[str] = ()) -> Worker | None:
        """Return a worker that has room now; None if none has. `without` names workers that are not to be asked."""
        holders = self._with_image.get(image) if image is not None else None
        found = holders.best(need, without) if holders is not None else None
        return found or self._all.best(need, without)

    def holders(self, image: str) -> list[Worker]:
        """Return the workers that have an image or a snapshot."""
        found = self._with_image.get(image)
        return [] if found is None else list(found.items)

    def choose_holder(self, need: Need, snapshot: str, without: Collection[str] = ()) -> Worker | None:
        """Return a worker that has room now and this snapshot, which no other worker could get."""
        holders = self._with_image.get(snapshot)
        return None if holders is None else holders.best(need, without)

    def has(self, ability: str) -> bool:
        """Whether some worker says that it has an ability."""
        return self._able[ability] > 0

    def could_ever(self, need: Need) -> bool:
        """Whether some worker is able, and would have room if it were empty."""
        return any(worker.could_fit(need) for worker in self._all.items)


class _Sampled:
    """A set from which a few can be picked at random in constant time."""

    def __init__(self) -> None:
        self.items: list[Worker] = []
        self._index: dict[str, int] = {}

    def add(self, worker: Worker) -> None:
        if worker.id not in self._index:
            self._index[worker.id] = len(self.items)
            self.items.append(worker)

    def discard(self, worker: Worker) -> bool:
        place = self._index.pop(worker.id, None)
        if place is not None:
            last = self.items.pop()
            if last is not worker:
                self.items[place] = last
                self._index[last.id] = place
        return place is not None

    def best(self, need: Need, without: Collection[str]) -> Worker | None:
        few = self.items if len(self.items) <= SAMPLE else random.choices(self.items, k=SAMPLE)
        return _emptiest(few, need, without) or (
            _emptiest(self.items, need, without) if len(few) < len(self.items) else None
        )


def _emptiest(workers: list[Worker], need: Need, without: Collection[str]) -> Worker | None:
    fitting = [worker for worker in workers if worker.fits(need) and worker.name not in without]
    return min(fitting, key=lambda worker: (worker.load(), worker.starting), default=None)
