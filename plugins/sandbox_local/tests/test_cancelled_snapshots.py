"""A snapshot that is cancelled in its last wait, when it is already published."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ale_local.snapshots import SnapshotMaker


class Store:
    """Snapshots by name. Whoever waits for a draft to be released is cancelled meanwhile."""

    def __init__(self, *names: str) -> None:
        self.names, self.published = {*names}, ""
        self.loop, self.maker = asyncio.get_running_loop(), asyncio.current_task()

    def read(self, name: str) -> Any:
        return name if name in self.names else None

    def draft(self) -> Any:
        return SimpleNamespace(path=None)

    def publish(self, draft: Any, name: str | None, **facts: Any) -> str:
        self.published = name or "given"
        self.names.add(self.published)
        return self.published

    def release(self, draft: Any) -> None:
        assert self.maker is not None
        self.loop.call_soon_threadsafe(self.maker.cancel)

    def remove(self, name: str) -> None:
        self.names.remove(name)


class Maker(SnapshotMaker):
    """It has nothing to copy."""

    async def copy(self, channel: Any, folder: Any) -> int:
        return 0


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        (None, [], set()),
        ("mine", [], set()),
        ("mine", ["mine"], {"mine"}),  # the one before was replaced, and a snapshot of that name has to stay
    ],
)
async def test_it_leaves_nothing_whose_name_nobody_was_told(
    name: str | None, before: list[str], after: set[str]
) -> None:
    stores: list[Store] = []
    channel: Any = SimpleNamespace(sandbox_id="box")

    async def take() -> None:
        stores.append(store := Store(*before))
        snapshots: Any = store
        await Maker(snapshots, ("/work",), "archive", 0, 1 << 20).take(channel, name)

    async with asyncio.timeout(60):
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(take())
    assert [(store.published, store.names) for store in stores] == [(name or "given", after)]
