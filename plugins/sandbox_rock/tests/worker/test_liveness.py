"""Sandboxes without a resident, whose end only their provider's list tells."""

from __future__ import annotations

import asyncio

from ale.specs.sandbox import SandboxSpec
from ale_rock.schemas import CreateSandbox
from ale_rock.worker.service import WorkerService
from ale_rock.worker.settings import WorkerSettings
from ale_testing.fake_sandboxes import MemoryProvider


async def test_the_end_of_a_sandbox_is_noticed_in_the_providers_list() -> None:
    provider = MemoryProvider()
    ended = asyncio.Event()
    async with WorkerService(provider, WorkerSettings()) as service:
        service.on_ended = lambda sandbox_id, reason: ended.set()
        for name in ("one", "two", "three"):
            await service.create(CreateSandbox(id=name, spec=SandboxSpec()))
        await service.remove("three")
        next(box for box in provider.alive if box.id == "one").dead = True
        async with asyncio.timeout(120):
            await ended.wait()
        assert [(each.id, each.alive) for each in service.list()] == [("two", True), ("one", False)]
        assert "lists it no more" in str(service.gone("one"))
    assert provider.alive == set()


async def test_a_start_that_the_caller_gave_up_goes_on_and_can_be_removed() -> None:
    provider = MemoryProvider()
    provider.gate.clear()
    async with WorkerService(provider, WorkerSettings()) as service:
        request = CreateSandbox(id="one", spec=SandboxSpec())
        asking = asyncio.create_task(service.create(request))
        while not provider.starting:  # noqa: ASYNC110
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert service.ids == ["one"]
        provider.gate.set()
        assert (await service.create(request)).id == "one"
        assert provider.started == 1
        await service.remove("one")
        assert provider.alive == set()
