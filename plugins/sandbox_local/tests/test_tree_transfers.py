"""A tree of files is moved piece by piece, and a transfer that is broken off leaves nothing."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from ale.errors import SandboxError
from ale.specs.sandbox import Resources, SandboxSpec
from ale_local import LocalSandbox, LocalSandboxProvider
from ale_sandbox.host.tree_transfers import Transfer

from .conftest import contents


async def test_a_large_tree_takes_little_memory_and_other_calls_go_on(
    sandbox: LocalSandbox, tmp_path: Path, provider: LocalSandboxProvider
) -> None:
    size = 100 << 20
    network = "none" if provider.wrap is not None else "full"
    spec = SandboxSpec(network=network, resources=Resources(disk_mib=256) if provider.wrap is not None else Resources())
    with (tmp_path / "large").open("wb") as file:
        for number in range(size >> 20):
            file.write(number.to_bytes(1, "big") * (1 << 20))
    async with await provider.start_sandbox(spec) as box:
        channel, most, calls = box.channel, 0, 0

        async def watch() -> None:
            nonlocal most, calls
            while True:
                assert channel.transport is not None
                most = max(most, channel.transport.get_write_buffer_size() + len(channel.inbox))
                assert (await box.exec(f"echo {calls}")).stdout == f"{calls}\n".encode()
                calls += 1

        for move in (box.upload_tree(tmp_path / "large", "large"), box.download_tree("large", tmp_path / "back")):
            watching, before = asyncio.ensure_future(watch()), calls
            await move
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            assert calls > before, "a command ran while the tree was under way"
        assert most < 16 << 20, "a few pieces, not the tree"
        peak = (await box.exec("grep VmHWM /proc/$PPID/status")).stdout.split()
        assert int(peak[1]) < 60_000, "kB of the resident's"
    assert (tmp_path / "back").read_bytes() == (tmp_path / "large").read_bytes()


async def test_a_cancelled_transfer_leaves_a_usable_sandbox_and_nothing_here(
    sandbox: LocalSandbox, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(4):
        (source / str(number)).write_bytes(os.urandom(1 << 20))
    await sandbox.upload_tree(source, "whole")
    for after_s in (0.0, 0.005, 0.02, 0.05):
        for move in (sandbox.upload_tree(source, "part"), sandbox.download_tree("whole", tmp_path / "part")):
            task = asyncio.ensure_future(move)
            await asyncio.sleep(after_s)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            whole = not task.cancelled() and move.__name__ == "download_tree"
            assert ("part" in os.listdir(tmp_path)) == whole
            if whole:
                (tmp_path / "part").rename(tmp_path.with_name(f"{tmp_path.name}-{after_s}"))
    assert (await sandbox.exec("echo on")).stdout == b"on\n"
    assert os.listdir(tmp_path) == ["source"]
    opened = await sandbox.exec("ls /proc/$PPID/fd 2>/dev/null | wc -l")
    assert int(opened.stdout) < 20, "nothing is left open inside"
    await sandbox.upload_tree(source, "again")
    await sandbox.download_tree("again", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(source)


async def test_a_sandbox_that_is_stopped_ends_its_transfers(sandbox: LocalSandbox, tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 20)
        file.write(os.urandom(8 << 20))
    uploading = asyncio.ensure_future(sandbox.upload_tree(tmp_path / "large", "large"))
    await asyncio.sleep(0.01)
    await sandbox.stop()
    with pytest.raises(SandboxError):
        await asyncio.wait_for(uploading, 20)
    with pytest.raises(SandboxError):
        await sandbox.download_tree("x", tmp_path / "back")
    assert os.listdir(tmp_path) == ["large"]


@pytest.mark.bwrap
async def test_a_download_that_is_cancelled_at_its_last_wait_leaves_nothing(
    box: LocalSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await box.exec("mkdir tree; echo 1 > tree/file")
    at_the_end, end = asyncio.Event(), Transfer.__aexit__

    async def end_slowly(transfer: Transfer, *exc: object) -> None:
        await end(transfer, *exc)
        at_the_end.set()
        await asyncio.sleep(0.05)

    monkeypatch.setattr(Transfer, "__aexit__", end_slowly)
    downloading = asyncio.ensure_future(box.download_tree("tree", tmp_path / "back"))
    await at_the_end.wait()
    downloading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await downloading
    assert os.listdir(tmp_path) == []
    await box.download_tree("tree", tmp_path / "back")
    assert (tmp_path / "back/file").read_text() == "1\n"


async def test_a_path_that_no_file_can_have_is_refused_in_a_sentence(sandbox: LocalSandbox, tmp_path: Path) -> None:
    for name in ("a\0b", "a\ud800b"):
        with pytest.raises(SandboxError, match="is no path"):
            await sandbox.upload_tree(tmp_path / name, "/tmp/tree")
        with pytest.raises(SandboxError, match="is no path"):
            await sandbox.download_tree("/tmp", tmp_path / name)
    assert os.listdir(tmp_path) == []
