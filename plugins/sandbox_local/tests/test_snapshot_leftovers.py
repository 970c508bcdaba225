"""Snapshots and the sandboxes that start from them leave nothing behind, however they end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ale.errors import SandboxError
from ale.specs.sandbox import SandboxSpec
from ale_local import LocalSandbox, LocalSandboxProvider, sandbox_records
from ale_sandbox.host.owned_folders import start_time, state_folder

from .conftest import as_root, layers, provider_for
from .test_lifetime import eventually, sleepers

OWNER = """
import asyncio, sys, tempfile
tempfile.tempdir = sys.argv[1]
from ale.specs.driver import DriverContext
from ale.specs.sandbox import Resources, SandboxSpec
from ale_local import LocalSandboxConfig, LocalSandboxProvider
async def main():
    config = LocalSandboxConfig(isolation="bubblewrap", defaults=Resources(disk_mib=64))
    provider = LocalSandboxProvider(config, DriverContext())
    await provider.start()
    box = await provider.start_sandbox(SandboxSpec())
    await box.exec("echo kept > state")
    name = await box.snapshot("named")
    await box.snapshot()
    fork = await provider.start_sandbox(SandboxSpec(from_snapshot=name))
    await fork.exec("setsid sleep 4026 &")
    if sys.argv[2] == "half":
        await box.exec("head -c 50000000 /dev/urandom > large")
        asyncio.get_running_loop().call_later(0.02, lambda: print("ready", flush=True))
        while True:
            await box.snapshot()
    print("ready", flush=True)
    await fork.exec("sleep 4026")
asyncio.run(main())
"""


def inhabitants(pids: list[int]) -> set[tuple[int, int]]:
    """All processes in the mount namespaces of these processes and of their parents: what is mounted there goes with
    them."""
    parents = [int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]) for pid in pids]
    spaces = {os.readlink(f"/proc/{pid}/ns/mnt") for pid in (*pids, *parents)} - {os.readlink("/proc/self/ns/mnt")}
    found: set[tuple[int, int]] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.readlink(entry / "ns/mnt") in spaces:
                    found.add((int(entry.name), start_time(int(entry.name))))
    return found


def alive(processes: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Those of the processes that still run."""
    return {(pid, started) for pid, started in processes if start_time(pid) == started}


def marked(name: str) -> list[str]:
    """The processes that were started for sandboxes whose id begins so."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and start_time(int(entry.name)):
            with contextlib.suppress(OSError):
                if f"{sandbox_records.MARKER}={name}".encode() in (entry / "environ").read_bytes():
                    found.append(entry.name)
    return found


def mounts_here() -> str:
    """What is mounted where this process is, but for what was there before."""
    return "".join(line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "/place" in line)


@as_root
async def test_a_fork_that_ends_leaves_no_mount_process_or_folder(wrapped: LocalSandboxProvider) -> None:
    async with await wrapped.start_sandbox(SandboxSpec()) as box:
        name = await box.snapshot()
    fork = await wrapped.start_sandbox(SandboxSpec(from_snapshot=name))
    await fork.exec("setsid sleep 4024 &")
    inside = inhabitants([fork.record.pid])
    assert len(inside) == 3, "bubblewrap, the resident, and what it runs"
    assert "upperdir=" not in mounts_here(), "mounts are in the sandbox's namespaces alone"
    await fork.stop()
    assert not alive(inside)
    assert not sleepers(4024)
    held = await wrapped.start_sandbox(SandboxSpec(from_snapshot=name))
    inside = inhabitants([held.record.pid])
    os.kill(held.record.pid, signal.SIGKILL)
    await asyncio.wait_for(held.channel.closed.wait(), 60)
    await held.stop()
    assert not alive(inside)
    await wrapped.close()
    assert os.listdir(state_folder("local")) == []


@as_root
@pytest.mark.parametrize("moment", ["running", "half"])
async def test_an_owner_that_is_killed_leaves_what_has_a_name(own_state: Path, moment: str) -> None:
    command = [sys.executable, "-c", OWNER, str(own_state), moment]
    owner = await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    assert await asyncio.to_thread(owner.stdout.readline) == b"ready\n"
    assert await eventually(lambda: sleepers(4026))
    inside = inhabitants([record.pid for record in sandbox_records.read_all(state_folder("local"))])
    owner.kill()
    owner.wait()
    assert await eventually(lambda: not sleepers(4026))
    assert await eventually(lambda: not alive(inside))
    async with provider_for("bubblewrap") as provider:
        assert await provider.snapshots() == ["named"]
        folder = state_folder("local") / "snapshots"
        assert sorted(name.partition("-")[0] for name in os.listdir(folder)) == ["layer", "named.json"]
        async with await provider.start_sandbox(SandboxSpec(from_snapshot="named")) as fork:
            assert await fork.download("state") == b"kept\n"
        await provider.remove_snapshot("named")
        assert [name[:5] for name in os.listdir(state_folder("local"))] == ["base-"]


@as_root
async def test_a_start_of_a_fork_that_is_cancelled_leaves_nothing(wrapped: LocalSandboxProvider) -> None:
    async with await wrapped.start_sandbox(SandboxSpec()) as box:
        name = await box.snapshot()
    for delay in (0.0, 0.001, 0.003, 0.006, 0.01, 0.02):
        spec = SandboxSpec(from_snapshot=name, id=f"cancelled-{os.getpid()}-{delay * 1000:.0f}")
        start = asyncio.create_task(wrapped.start_sandbox(spec))
        await asyncio.sleep(delay)
        start.cancel()
        (end,) = await asyncio.gather(start, return_exceptions=True)
        if isinstance(end, LocalSandbox):
            await end.stop()
    assert await wrapped.list() == []
    assert await eventually(lambda: not marked(f"cancelled-{os.getpid()}-"))
    await wrapped.remove_snapshot(name)
    assert await wrapped.snapshots() == []
    assert not (state_folder("local") / "snapshots").exists(), "nobody holds it"


async def test_a_cancelled_snapshot_leaves_nothing(box: LocalSandbox, wrapped: LocalSandboxProvider) -> None:
    await box.exec("head -c 10000000 /dev/urandom > large")
    for delay in (0.0, 0.002, 0.01, 0.03):
        taking = asyncio.create_task(box.snapshot("half"))
        await asyncio.sleep(delay)
        taking.cancel()
        (end,) = await asyncio.gather(taking, return_exceptions=True)
        if isinstance(end, str):
            await wrapped.remove_snapshot(end)
        assert not (state_folder("local") / "snapshots").exists()
    assert (await box.exec("echo on")).stdout == b"on\n"


async def test_a_sandbox_that_dies_under_its_snapshot_leaves_none(box: LocalSandbox) -> None:
    await box.exec("head -c 15000000 /dev/urandom > large")
    taking = asyncio.create_task(box.snapshot("dying"))
    await asyncio.sleep(0.02)
    os.kill(box.record.pid, signal.SIGKILL)
    (end,) = await asyncio.gather(taking, return_exceptions=True)
    assert isinstance(end, SandboxError) or end == "dying"
    assert layers().names() == ([] if isinstance(end, SandboxError) else ["dying"])
    layers().remove("dying")
    assert not layers().folder.exists()
