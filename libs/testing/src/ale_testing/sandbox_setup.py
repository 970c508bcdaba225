"""The sandbox suites share this setup: specs that the provider says it supports, and a provider with a sandbox."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ale.config.capabilities import NETWORKS
from ale.specs.sandbox import NetworkMode, Sandbox, SandboxSpec
from ale_testing.async_tests import patience_s
from ale_testing.plugin_under_test import Subject

needs = pytest.mark.ale_needs.with_args

EVERY_BYTE = bytes(range(256))
LARGE = EVERY_BYTE * 4096 * 20  # 20 MiB
LOOP = "i=0; while :; do i=$((i+1)); echo $i > beat.new; mv beat.new beat; sleep 0.05; done"
"""Counts, for whoever looks whether it still runs."""
END_S = 20.0
"""Seconds within which a command ends that nobody waits for."""
WRITES = "until [ -e beat ]; do sleep 0.02; done"
"""Ends when `LOOP` has begun to count."""


async def counts_on(box: Sandbox) -> bool:
    """Whether `LOOP` runs. A busy machine may let it wait, so this waits for its next count."""
    command = 'now() { cat beat 2>/dev/null; }; was=$(now); until [ "$(now)" != "$was" ]; do sleep 0.05; done'
    return not (await box.exec(command, timeout_s=patience_s())).timed_out


async def counts_no_more(box: Sandbox) -> bool:
    """Whether `LOOP` has ended, or never began: its count is the same for half a second."""
    told = (await box.exec("cat beat 2>/dev/null; sleep 0.5; cat beat 2>/dev/null")).stdout.split()
    return not told or told[0] == told[-1]


async def ends_counting(box: Sandbox) -> bool:
    """Whether `LOOP` ends within `END_S`. Whoever leaves a command does not wait for its end, and a provider far away
    hears of it later than the next command begins."""
    until = asyncio.get_running_loop().time() + END_S
    while not await counts_no_more(box):
        if asyncio.get_running_loop().time() > until:
            return False
    return True


def spec(subject: Subject, **more: Any) -> SandboxSpec:
    """A plain sandbox under the strictest network policy that the provider claims."""
    for mode, capability in NETWORKS.items():
        if subject.can(capability):
            return network_spec(mode, **more)
    raise AssertionError(f"a provider must claim at least one of {', '.join(NETWORKS.values())}")


def network_spec(mode: NetworkMode, **more: Any) -> SandboxSpec:
    """A sandbox of a network policy, with what the policy has to name."""
    needed: dict[str, Any] = {"endpoint-only": {"endpoint": "http://127.0.0.1:9"}, "allow": {"allow": ("127.0.0.1:9",)}}
    return SandboxSpec(network=mode, **needed.get(mode, {}), **more)


@asynccontextmanager
async def started(subject: Subject, **more: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A provider and one sandbox; both gone afterwards. What they can do beyond their contracts is for the test to
    know (`needs`)."""
    async with subject.build() as provider:
        async with await provider.start_sandbox(spec(subject, **more)) as box:
            yield provider, box
        assert box.id not in {i.id for i in await provider.list()}, "list() must not name a sandbox that was stopped"


async def work_folder(box: Sandbox) -> str:
    """Where commands begin; a provider without a file system of its own cannot choose it."""
    return (await box.exec("pwd")).stdout.decode().rstrip("\n")


def addresses_of_this_host() -> list[str]:
    """Addresses other than loopback that services of this host can be reached at."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # nothing is sent: this asks which address would be used
            return [sock.getsockname()[0]]
        except OSError:
            return []


def write_secret(path: Path) -> Path:
    """A file of the host's that no sandbox may read."""
    path.write_text("secret")
    return path


def read_own_command_line() -> bytes:
    """This process's, where the system tells."""
    own = Path("/proc/self/cmdline")
    return own.read_bytes() if own.exists() else b""
