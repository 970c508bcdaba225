"""Nothing is left behind: after a stop, after a refused start, after the owner was killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ale.errors import ConfigError, SandboxError
from ale.specs.sandbox import Resources, SandboxSpec
from ale_local import LocalSandboxProvider, sandbox_records
from ale_local.spec_checks import check_spec
from ale_sandbox.host.owned_folders import remove_folder, start_time, state_folder

from .conftest import provider_for, spec_of

OWNER = """
import asyncio, sys, tempfile
tempfile.tempdir = sys.argv[1]
from ale.specs.driver import DriverContext
from ale.specs.sandbox import Resources, SandboxSpec
from ale_local import LocalSandboxConfig, LocalSandboxProvider
async def main():
    provider = LocalSandboxProvider(LocalSandboxConfig(isolation=sys.argv[2]), DriverContext())
    await provider.start()
    network = "full" if provider.wrap is None else "none"
    sandbox = await provider.start_sandbox(SandboxSpec(id="orphan", labels={"who": "owner"}, network=network))
    await sandbox.exec("setsid sleep 4010 &")
    print("ready", flush=True)
    await sandbox.exec("sleep 4010")
asyncio.run(main())
"""


def sleepers(seconds: int) -> list[int]:
    """Processes `sleep SECONDS` anywhere on this machine."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and start_time(int(entry.name)):
            try:
                if (entry / "cmdline").read_bytes() == f"sleep\0{seconds}\0".encode():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def start_owner(folder: Path, isolation: str) -> subprocess.Popen[bytes]:
    """A process that starts a sandbox and is busy in it."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(folder), isolation], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"ready\n"
    return owner


def existing(paths: list[str]) -> list[str]:
    """Those of the paths that exist."""
    return [path for path in paths if Path(path).exists()]


async def eventually(condition: Callable[[], object], timeout_s: float = 60.0) -> bool:
    """Whether a condition comes true in time."""
    until = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > until:
            return False
        await asyncio.sleep(0.02)
    return True


async def test_a_stop_leaves_no_process_group_or_folder(provider: LocalSandboxProvider) -> None:
    sandbox = await provider.start_sandbox(spec_of(provider))
    await sandbox.exec("(setsid sleep 4011 &); mkdir -p locked/inner; chmod 000 locked")
    assert await eventually(lambda: len(sleepers(4011)) == 1)
    record = sandbox.record
    assert [info.alive for info in await provider.list()] == [True]
    await sandbox.stop()
    assert not sleepers(4011)
    assert not record.alive
    assert not existing(record.cgroups)
    assert not existing([record.folder or "/no/folder"])
    assert await provider.list() == []
    await provider.close()
    assert os.listdir(state_folder("local")) == []


async def test_closing_the_provider_stops_its_sandboxes(provider: LocalSandboxProvider) -> None:
    sandboxes = await asyncio.gather(*(provider.start_sandbox(spec_of(provider)) for _ in range(4)))
    await provider.close()
    assert not [s for s in sandboxes if s.record.alive]
    with pytest.raises(SandboxError):
        await sandboxes[0].exec("true")


async def test_an_id_is_given_once(provider: LocalSandboxProvider) -> None:
    async with await provider.start_sandbox(spec_of(provider, id="one")), provider_for("auto") as other:
        with pytest.raises(ConfigError, match="exists already"):
            await other.start_sandbox(SandboxSpec(id="one"))
    async with await provider.start_sandbox(spec_of(provider, id="one")) as again:
        assert again.id == "one"


async def test_a_start_that_is_cancelled_leaves_nothing(provider: LocalSandboxProvider) -> None:
    for delay in (0.0, 0.005, 0.01, 0.02):
        start = asyncio.create_task(provider.start_sandbox(spec_of(provider)))
        await asyncio.sleep(delay)
        start.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await start).stop()
    assert await provider.list() == []
    assert provider.sandboxes == {}


async def test_labels_are_listed_and_anyone_may_remove(provider: LocalSandboxProvider) -> None:
    sandbox = await provider.start_sandbox(spec_of(provider, labels={"task": "t"}))
    other = provider_for("none")
    (info,) = await other.list()
    assert (info.id, dict(info.labels), info.alive) == (sandbox.id, {"run": "r1", "task": "t"}, True)
    await other.remove(sandbox.id)
    await other.remove(sandbox.id)
    assert await other.list() == []
    with pytest.raises(SandboxError):
        await sandbox.exec("true")


@pytest.mark.parametrize("isolation", ["none", pytest.param("bubblewrap", marks=pytest.mark.bwrap)])
async def test_a_killed_owner_leaves_nothing_that_the_next_start_does_not_reclaim(
    isolation: str, own_state: Path
) -> None:
    owner = start_owner(own_state, isolation)
    assert await eventually(lambda: len(sleepers(4010)) == 2)
    (record,) = sandbox_records.read_all(state_folder("local"))
    owner.kill()
    owner.wait()
    assert await eventually(lambda: not sleepers(4010)), "processes end without anyone's help"
    async with provider_for("none") as provider:
        assert await provider.list() == []
        assert not existing(record.cgroups)
        assert [name[:5] for name in os.listdir(state_folder("local"))] == ["base-"]


async def test_a_plain_sandbox_whose_owner_and_resident_were_killed_is_reclaimed(own_state: Path) -> None:
    owner = start_owner(own_state, "none")
    assert await eventually(lambda: len(sleepers(4010)) == 2)
    (record,) = sandbox_records.read_all(state_folder("local"))
    os.kill(record.pid, signal.SIGKILL)
    owner.kill()
    owner.wait()
    async with provider_for("none") as provider:
        assert await provider.list() == []
        assert not sleepers(4010)


async def test_a_claim_that_was_never_filled_in_is_reclaimed_later() -> None:
    folder = state_folder("local")
    for name, age_s in (("old", 120.0), ("new", 0.0)):
        (folder / f"{name}.json").touch()
        os.utime(folder / f"{name}.json", (time.time() - age_s,) * 2)
    assert sandbox_records.reclaim(folder) == []
    assert os.listdir(folder) == ["new.json"]


async def test_many_sandboxes_at_once(provider: LocalSandboxProvider) -> None:
    async def one(number: int) -> bytes:
        async with await provider.start_sandbox(spec_of(provider)) as sandbox:
            return (await sandbox.exec(f"echo {number}")).stdout

    assert await asyncio.gather(*(one(n) for n in range(64))) == [f"{n}\n".encode() for n in range(64)]
    assert await provider.list() == []


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        (SandboxSpec(image="debian"), "images"),
        (SandboxSpec(network="full"), "network: full"),
        (SandboxSpec(network="allow"), "names no host"),
        (SandboxSpec(network="none", allow=("x:1",)), "needs.allow names hosts"),
        (SandboxSpec(network="endpoint-only"), "needs the address of the model endpoint"),
        (SandboxSpec(user="root"), "user: root"),
        (SandboxSpec(resources=Resources(gpus=1)), "GPUs"),
        (SandboxSpec(id="../x"), "named"),
    ],
)
async def test_what_cannot_be_given_is_refused(wrapped: LocalSandboxProvider, spec: SandboxSpec, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        await wrapped.start_sandbox(spec)
    assert await wrapped.list() == []


@pytest.mark.bwrap
async def test_limits_default_to_the_providers_own() -> None:
    async with provider_for("bubblewrap") as provider:
        asked = SandboxSpec(resources=Resources(pids=7))
        assert check_spec(asked, provider.config, isolated=True, limited=True).pids == 7
        assert check_spec(SandboxSpec(), provider.config, isolated=True, limited=True).pids == 64


async def test_limits_that_nothing_enforces_are_refused() -> None:
    async with provider_for("none") as provider:
        with pytest.raises(ConfigError, match=r"so memory_mib, pids cannot be met; leave needs\.resources out"):
            await provider.start_sandbox(spec_of(provider, resources=Resources(memory_mib=64, pids=7)))
        plain = SandboxSpec(network="full")
        assert check_spec(plain, provider.config, isolated=False, limited=False).pids == 64
        for network in ("none", "endpoint-only", "allow"):
            with pytest.raises(ConfigError, match=f"network: {network} cannot be met: install it"):
                await provider.start_sandbox(SandboxSpec(network=network))


async def test_of_starts_of_one_id_at_the_same_time_one_starts_and_all_get_it(provider: LocalSandboxProvider) -> None:
    spec = spec_of(provider, id="the-one", labels={"a": "b"})
    boxes = await asyncio.gather(*(provider.start_sandbox(spec) for _ in range(4)))
    assert len(set(map(id, boxes))) == 1
    with pytest.raises(ConfigError, match="'the-one' runs already with another spec"):
        await provider.start_sandbox(spec.model_copy(update={"workdir": "/elsewhere"}))
    await boxes[0].stop()
    again = await provider.start_sandbox(spec)
    assert again is not boxes[0], "one that was stopped is started anew"
    assert (await again.exec("echo on")).stdout == b"on\n"


def test_a_folder_of_any_depth_is_removed(tmp_path: Path) -> None:
    top = tmp_path / "top"
    subprocess.run(["python3", "-c", DEEP, str(top)], check=True)
    remove_folder(top)
    assert not top.exists()


DEEP = """
import os, sys
os.mkdir(sys.argv[1])
os.chdir(sys.argv[1])
for _ in range(3000):
    os.mkdir("d")
    os.chdir("d")
os.mkdir("closed", 0o000)
"""
