"""Shells beside each other in one sandbox, and commands in them that nobody wants any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ale.registry.drivers import build_driver
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale.specs.sandbox import SandboxSpec

pytestmark = pytest.mark.bwrap


@pytest.fixture
async def box() -> AsyncIterator[Any]:
    driver: Any = build_driver("sandbox", PluginChoice(use="local"), DriverContext())
    async with driver as provider, await provider.start_sandbox(SandboxSpec()) as started:
        yield started


async def test_shells_that_open_at_once_all_run_their_first_command(box: Any) -> None:
    for _ in range(12):  # numbers of descriptors are used again: some events were meant for what had a number before
        shells = await asyncio.gather(*(box.open_shell() for _ in range(8)))
        ran = await asyncio.gather(*(shell.run(f"echo {i}; exit {i}", timeout_s=30) for i, shell in enumerate(shells)))
        assert [(done.exit_code, done.stdout) for done in ran] == [(i, b"%d\n" % i) for i in range(8)]
        await asyncio.gather(*(shell.close() for shell in shells))


async def test_a_shell_goes_on_after_a_command_that_was_cancelled(box: Any) -> None:
    async with await box.open_shell() as shell:
        await shell.run("kept=1")
        for seconds in (0.0, 0.02, 0.5):
            running = asyncio.ensure_future(shell.run("sleep 4711"))
            await asyncio.sleep(seconds)
            running.cancel()
            await asyncio.wait([running])
            assert (await shell.run("echo $kept", timeout_s=30)).stdout == b"1\n"
        assert (await box.exec("cat /proc/[0-9]*/cmdline | grep -ac 471[1]")).stdout == b"0\n"
