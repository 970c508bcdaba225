"""Writable folders outside the work folder, which programs expect at fixed places (`folders`)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ale.errors import ConfigError
from ale.specs.driver import DriverContext
from ale.specs.sandbox import SandboxSpec
from ale_local import LocalSandboxConfig, LocalSandboxProvider, bubblewrap

from .conftest import SMALL

pytestmark = pytest.mark.bwrap
FOLDERS = ("/data/logs/user-defined", "/root", "/testbed")
WRITE = "for f in /data /data/logs /data/logs/user-defined /root /testbed; do echo {} > $f/file || exit 1; done"
READ = "cat /data/file /data/logs/file /data/logs/user-defined/file /root/file /testbed/file"


def provider_with(*folders: str) -> LocalSandboxProvider:
    """A provider, not started yet."""
    config = LocalSandboxConfig(isolation="bubblewrap", defaults=SMALL, folders=folders)
    return LocalSandboxProvider(config, DriverContext())


@pytest.fixture(params=["several users", "one user"])
async def provider(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[LocalSandboxProvider]:
    """One whose sandboxes have the folders, with the users that root or a normal user can give them."""
    if request.param == "one user":
        monkeypatch.setattr(bubblewrap, "make_namespaces", lambda *_: None)
    async with provider_with(*FOLDERS) as started:
        yield started


async def test_each_sandbox_has_its_own(provider: LocalSandboxProvider) -> None:
    async with await provider.start_sandbox(SandboxSpec()) as box, await provider.start_sandbox(SandboxSpec()) as other:
        assert (await box.exec(WRITE.format("mine"))).exit_code == 0
        assert (await box.exec(READ)).stdout == b"mine\n" * 5
        assert (await other.exec(READ)).stdout == b""
        assert (await box.exec("touch /other")).exit_code != 0
        full = await box.exec("head -c 17M /dev/zero > /testbed/large")
        assert b"No space left" in full.stderr, "the limit of the disk holds there too"


async def test_a_reset_empties_them(provider: LocalSandboxProvider) -> None:
    async with await provider.start_sandbox(SandboxSpec()) as box:
        await box.exec(WRITE.format("mine"))
        await box.reset(SandboxSpec())
        assert (await box.exec(READ)).stdout == b""
        assert (await box.exec("test -d /data/logs/user-defined")).exit_code == 0


async def test_a_snapshot_holds_them(provider: LocalSandboxProvider) -> None:
    async with await provider.start_sandbox(SandboxSpec(workdir="/testbed")) as box:
        await box.exec(WRITE.format("kept"))
        name = await box.snapshot()
    async with await provider.start_sandbox(SandboxSpec(from_snapshot=name, workdir="/testbed")) as fork:
        assert (await fork.exec(READ)).stdout == b"kept\n" * 5
        assert (await fork.exec(WRITE.format("new"))).exit_code == 0
    await provider.remove_snapshot(name)


@pytest.mark.parametrize("folder", ["logs", "/", "/etc/mine", "/usr/local", "/data/../etc", "/a\0b"])
async def test_a_folder_that_cannot_be_is_refused(folder: str) -> None:
    with pytest.raises(ConfigError, match=r"sandbox\.folders"):
        await provider_with(folder).start()
