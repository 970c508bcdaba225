"""Where overlays cannot be mounted a snapshot is sent into the new sandbox, or refused with a sentence."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ale.errors import ConfigError, SandboxError
from ale.specs.driver import DriverContext
from ale.specs.sandbox import TESTS, SandboxSpec
from ale.specs.sandbox_protocols import Snapshots
from ale_local import LocalSandboxConfig, LocalSandboxProvider, launcher

from .conftest import as_root, layers, provider_for


async def test_without_overlays_a_snapshot_is_sent_into_the_new_sandbox(request: pytest.FixtureRequest) -> None:
    patch = pytest.MonkeyPatch()
    patch.setattr(launcher.Launcher, "can_fork", lambda *_: False)
    request.addfinalizer(patch.undo)
    async with provider_for("bubblewrap") as provider:
        assert issubclass(provider.sandbox_type, Snapshots)
        assert "fork" not in provider.capabilities
        async with await provider.start_sandbox(SandboxSpec()) as box:
            await box.exec(
                "echo 1 > a; mkdir -m 700 d; echo 2 > d/f; ln -s /etc/shadow l; mkdir -m 500 ro; truncate -s 2G sparse"
            )
            await box.upload({"/tmp/hidden/x": b"answer", "d/theirs": b"t"}, user=TESTS, mode=0o640)
            look = "ls -lAn . d ro /tmp; cat a d/f; readlink l; stat -c %a ~ . /tmp"
            before = (await box.exec(look, user=TESTS)).stdout
            name = await box.snapshot("archive")
        async with await provider.start_sandbox(SandboxSpec(from_snapshot=name, files={"new": b"n"})) as copy:
            await copy.exec("rm new; touch -d '2001-01-01' . ; true")
            assert (await copy.exec(look, user=TESTS)).stdout == before
            assert (await copy.exec("cat /tmp/hidden/x; echo 3 >> d/f; cat d/f")).stdout == b"2\n3\n"
            with pytest.raises(SandboxError, match="was started from a snapshot"):
                await copy.reset(copy.spec)
    patch.undo()
    async with provider_for("bubblewrap") as able, await able.start_sandbox(SandboxSpec(from_snapshot=name)) as copy:
        assert (await copy.exec("cat a")).stdout == b"1\n", "also where a fork could be had"


@as_root
async def test_where_the_mount_namespace_cannot_be_entered_there_is_one_user_and_no_fork(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(name: str, *arguments: object) -> None:
        raise OSError(1, f"{name}: Operation not permitted")

    monkeypatch.setattr(launcher, "system_call", refused)
    async with provider_for("bubblewrap") as provider, await provider.start_sandbox(SandboxSpec()) as box:
        assert issubclass(provider.sandbox_type, Snapshots)
        assert not {"users", "fork"} & provider.capabilities
        assert (await box.exec("echo on")).stdout == b"on\n"


@as_root
async def test_a_layer_that_cannot_be_stood_on_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with provider_for("bubblewrap") as provider, await provider.start_sandbox(SandboxSpec()) as box:
        await box.snapshot("layer")
    config = LocalSandboxConfig(isolation="bubblewrap", uid_base=1_800_000_000)
    async with LocalSandboxProvider(config, DriverContext()) as provider:
        with pytest.raises(ConfigError, match=r"made with uid_base: 1900000000, and here it is 1800000000"):
            await provider.start_sandbox(SandboxSpec(from_snapshot="layer"))
        assert await provider.list() == []
    monkeypatch.setattr(launcher.Launcher, "can_fork", lambda *_: False)
    async with provider_for("bubblewrap") as provider:
        with pytest.raises(ConfigError, match="can mount overlays, which this one cannot"):
            await provider.start_sandbox(SandboxSpec(from_snapshot="layer"))
    assert layers().names() == ["layer"]


def test_a_normal_user_has_snapshots_too(as_user: Callable[[str], list[str]], tmp_path: Path) -> None:
    assert as_user("snapshots_as_user.py") == [
        "single",
        "['0', 'closed', '400', 'shut', '0', 'unreadable', 'S', 'T']",
        "again mine",
        "left:",
    ]
    assert os.listdir(tmp_path / "ale-local-1234") == []


async def test_without_isolation_there_are_none() -> None:
    async with provider_for("none") as provider:
        assert not issubclass(provider.sandbox_type, Snapshots)
        assert "fork" not in provider.capabilities
        async with await provider.start_sandbox(SandboxSpec(network="full")) as box:
            assert not isinstance(box, Snapshots)
        with pytest.raises(ConfigError, match="Without isolation there are no snapshots"):
            await provider.start_sandbox(SandboxSpec(network="full", from_snapshot="x"))
