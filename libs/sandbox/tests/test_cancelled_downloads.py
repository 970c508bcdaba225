"""A tree that is downloaded: it is at its place, or the call says that it is not, whenever it is cancelled."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ale_sandbox.host import tree_transfers
from ale_sandbox.resident.trees.tree_reader import Reader
from ale_sandbox.resident.trees.tree_writer import Writer


@pytest.mark.parametrize("wait", range(1, 6))
async def test_one_that_is_cancelled_leaves_nothing_and_one_that_came_too_late_is_whole(
    wait: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is cancelled in its nth wait for a thread, after the thread has done its work."""
    source, landing = tmp_path / "source", tmp_path / "landing"
    for folder in (source / "deep", landing):
        folder.mkdir(parents=True)
    (source / "deep" / "a").write_text("a")
    (source / "link").symlink_to("deep")
    waits = 0

    async def fetch(writer: Writer) -> bool:
        reader = Reader(os.open(source, os.O_RDONLY))
        last = False
        while not last:
            fields, last = reader.piece()
            writer.take(fields)
        reader.close()
        return True

    async def in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
        nonlocal waits
        waits += 1
        if waits == wait:
            call.cancel()
        done = function(*arguments)
        await asyncio.sleep(0)
        return done

    monkeypatch.setattr(tree_transfers, "in_thread", in_thread)
    call = asyncio.ensure_future(tree_transfers.land("It was not downloaded", "x", landing / "tree", 1 << 20, fetch))
    await asyncio.wait([call])
    if call.cancelled():
        assert not os.listdir(landing)
    else:
        assert call.exception() is None
        assert waits < wait
        assert os.listdir(landing) == ["tree"]
        assert (landing / "tree" / "link" / "a").read_text() == "a"
