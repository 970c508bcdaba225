"""The statistics of a sandbox tell what it takes, and asking for them is no work."""

from __future__ import annotations

import asyncio
from typing import Any

from ale.specs.driver import DriverContext
from ale_sandbox.resident.frames import frame
from ale_sandbox.sandboxes import attach_server
from ale_sandbox.sandboxes.attach_server import STATS

from .attached_client import Client, spec_for


async def test_stats_tell_what_files_take(any_provider: Any) -> None:
    async with await any_provider.start_sandbox(spec_for(any_provider)) as box:
        before = await box.stats()
        assert before.disk_bytes is not None
        await box.exec(
            "head -c 20000000 /dev/zero > large; mkdir -p d; head -c 5000000 /dev/zero > /tmp/more; rm -f /tmp/more"
        )
        after = await box.stats()
        assert after.disk_bytes is not None
        assert 19_000_000 < after.disk_bytes - before.disk_bytes < 24_000_000
        isolated = "isolated" in any_provider.capabilities
        expected = (0, 0) if isolated else (None, None)
        assert (after.network_in_bytes, after.network_out_bytes) == expected
        other = type(any_provider)(any_provider.config, DriverContext())
        async with await other.attach(box.id) as there:
            assert (await there.stats()).disk_bytes == after.disk_bytes


async def test_asking_what_it_uses_is_no_work(local: Any) -> None:
    async with await local.start_sandbox(spec_for(local, idle_s=1.0)) as box:
        client = await Client(local).opened(box)
        for number in range(2, 400):
            await client.send(frame(number, STATS, []))
            answer = await client.answer()
            if answer is None or answer[1] == attach_server.GONE:
                break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError("a sandbox that is only looked at is idle")
        client.close()
