"""Trees of files in and out, in both modes: as they were, piece by piece, and nowhere else."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale.errors import SandboxError
from ale.specs.sandbox import TESTS, Resources, SandboxSpec
from ale_local import LocalSandbox, LocalSandboxProvider
from ale_resident.resident.trees import packing
from ale_resident.trees.transfers import Transfer

from .conftest import provider_for

NAMES = st.binary(min_size=1, max_size=12).filter(lambda name: name not in (b".", b"..") and not set(name) & {0, 47})
FILES = st.tuples(st.binary(max_size=2000), st.sampled_from([0o600, 0o644, 0o755, 0o444, 0o640]))
TREES = st.recursive(FILES, lambda below: st.dictionaries(NAMES, below, max_size=5), max_leaves=20)
Content = tuple[str, int, int, bytes]


@pytest.fixture
async def sandbox(provider: LocalSandboxProvider) -> AsyncIterator[LocalSandbox]:
    """A sandbox of each isolation."""
    network = "none" if provider.wrap is not None else "full"
    async with await provider.start_sandbox(SandboxSpec(network=network)) as started:
        yield started


def make_tree(path: bytes, tree: Any) -> None:
    """A tree of the host's: a folder is a mapping of names, a file its content and mode."""
    if isinstance(tree, dict):
        os.mkdir(path)
        for name, below in tree.items():
            make_tree(path + b"/" + name, below)
    else:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(fd, tree[0])
        os.fchmod(fd, tree[1])
        os.close(fd)
    os.utime(path, ns=(0, 1_234_567_890_123_456_789))


def contents(root: Path) -> dict[bytes, Content]:
    """All that is in a tree: kind, mode, time, content."""
    found: dict[bytes, Content] = {}

    def look(path: bytes, name: bytes) -> None:
        seen = os.lstat(path)
        kind, mode = stat.filemode(seen.st_mode)[0], stat.S_IMODE(seen.st_mode)
        if kind == "l":
            found[name] = (kind, 0, seen.st_mtime_ns, os.readlink(path))
        elif kind == "d":
            found[name] = (kind, mode, seen.st_mtime_ns, b"")
            for base in os.listdir(path):
                look(path + b"/" + base, name + b"/" + base)
        else:
            found[name] = (kind, mode, seen.st_mtime_ns, Path(os.fsdecode(path)).read_bytes())

    look(os.fsencode(root), b"")
    return found


async def test_a_tree_is_the_same_after_upload_and_download(sandbox: LocalSandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "bin").mkdir(parents=True)
    (source / "bin/run").write_text("#!/bin/sh\necho ran; cat ../data/first\n")
    (source / "bin/run").chmod(0o755)
    (source / "data").mkdir()
    (source / "data/first").write_text("one")
    os.link(source / "data/first", source / "data/second")
    (source / "empty").mkdir(mode=0o700)
    (source / "closed").mkdir()
    (source / "closed/note").write_text("n")
    (source / "closed").chmod(0o555)
    (source / "link").symlink_to("bin/../data/first")
    (source / "bin/up").symlink_to("../empty")
    (source / "gone").symlink_to("not/there")
    await sandbox.upload_tree(source, "in/there")
    assert (await sandbox.exec("cd in/there/bin && ./run && cat ../link ../data/second")).stdout == b"ran\noneoneone"
    assert (await sandbox.exec("stat -c %a in/there/closed in/there/empty")).stdout == b"555\n700\n"
    await sandbox.download_tree("in/there", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(source)
    assert (tmp_path / "back/data/first").stat().st_nlink == 1


async def test_a_single_file_is_a_tree(sandbox: LocalSandbox, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\necho hi\n")
    (tmp_path / "run.sh").chmod(0o755)
    await sandbox.upload_tree(tmp_path / "run.sh", "deep/er/run")
    assert (await sandbox.exec("deep/er/run; ls -A deep/er")).stdout == b"hi\nrun\n"
    await sandbox.download_tree("deep/er/run", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(tmp_path / "run.sh")


@pytest.mark.bwrap
def test_any_tree_comes_back_as_it_went_in(tmp_path: Path) -> None:
    numbers = itertools.count()
    with asyncio.Runner() as runner:
        provider = provider_for("bubblewrap")
        runner.run(provider.start())
        box = runner.run(provider.start_sandbox(SandboxSpec()))

        @settings(max_examples=60, deadline=None, database=None)
        @given(tree=st.dictionaries(NAMES, TREES, max_size=6))
        def comes_back(tree: Any) -> None:
            place = tmp_path / str(next(numbers))
            place.mkdir()
            make_tree(os.fsencode(place / "source"), tree)
            runner.run(box.upload_tree(place / "source", place.name))
            runner.run(box.download_tree(place.name, place / "back"))
            assert contents(place / "back") == contents(place / "source")

        try:
            comes_back()
        finally:
            runner.run(provider.close())


async def test_a_sparse_file_costs_what_is_in_it(sandbox: LocalSandbox, tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 33)
        file.seek(1 << 32)
        file.write(b"middle")
    await sandbox.upload_tree(tmp_path / "sparse", "sparse")
    done = await sandbox.exec(
        "stat -c '%s' sparse; tail -c +4294967297 sparse | head -c 6; [ $(stat -c %b sparse) -lt 100 ]"
    )
    assert (done.stdout, done.exit_code) == (b"8589934592\nmiddle", 0)
    with pytest.raises(SandboxError, match="larger than 4294967296 bytes"):
        await sandbox.download_tree("sparse", tmp_path / "back")
    assert os.listdir(tmp_path) == ["sparse"]


# -- what a tree of the host's must not hold


async def refused(sandbox: LocalSandbox, source: Path) -> str:
    """The sentence with which a tree is refused before anything of it is sent."""
    with pytest.raises(SandboxError) as caught:
        await sandbox.upload_tree(source, "refused")
    assert (await sandbox.exec("ls refused")).exit_code != 0, "nothing of it was sent"
    return str(caught.value)


@pytest.mark.parametrize(
    ("link", "target"),
    [("l", "/etc/passwd"), ("l", ".."), ("d/l", "../../x"), ("l", "d/up/../x"), ("l", "abs/x"), ("l", "l")],
)
async def test_links_that_lead_out_are_not_sent(sandbox: LocalSandbox, tmp_path: Path, link: str, target: str) -> None:
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    (source / "d/up").symlink_to("..")
    if target == "abs/x":
        (source / "abs").symlink_to("/usr")
    (source / link).symlink_to(target)
    sentence = await refused(sandbox, source)
    assert "leads out of the tree or in a circle" in sentence
    assert str(source) in sentence


async def test_what_is_no_file_is_not_sent(sandbox: LocalSandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    os.mkfifo(source / "pipe")
    assert "'pipe' in it is a pipe" in await refused(sandbox, source)
    assert "it is a pipe" in await refused(sandbox, source / "pipe")
    (source / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source / "socket"))
        assert "'socket' in it is a socket" in await refused(sandbox, source)
        assert "cannot be put into the sandbox" in await refused(sandbox, source / "socket")
    assert "it is a device" in await refused(sandbox, Path("/dev/zero"))
    with pytest.raises(FileNotFoundError):
        await sandbox.upload_tree(tmp_path / "gone", "refused")


async def test_a_link_that_changes_while_the_tree_is_sent_is_not_sent(
    sandbox: LocalSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_text("a")
    (source / "l").symlink_to("a")
    begin = sandbox.channel.journal.record_request

    def began(*what: Any) -> None:
        (source / "l").unlink()
        (source / "l").symlink_to("/etc/passwd")
        begin(*what)

    monkeypatch.setattr(sandbox.channel.journal, "record_request", began)
    with pytest.raises(SandboxError, match="'l' was changed while the tree was read"):
        await sandbox.upload_tree(source, "t")
    monkeypatch.undo()
    assert (await sandbox.exec("ls -A t")).stdout in (b"", b"a\n")


# -- what the agent has put in the way


async def test_a_link_that_the_agent_planted_in_the_target_is_not_followed(
    sandbox: LocalSandbox, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub/file").write_text("new")
    (source / "file").write_text("new")
    await sandbox.exec(
        "mkdir -p elsewhere t1 t2; echo old > elsewhere/file; ln -s ../elsewhere t1/sub; ln -s elsewhere t3"
    )
    with pytest.raises(SandboxError, match="'sub' cannot be written: Not a directory"):
        await sandbox.upload_tree(source, "t1")
    with pytest.raises(SandboxError, match="'' cannot be written: Not a directory"):
        await sandbox.upload_tree(source, "t3")
    await sandbox.exec("ln -s ../elsewhere/file t2/file")
    await sandbox.upload_tree(source, "t2")
    assert (
        await sandbox.exec("cat elsewhere/file t2/file; ls elsewhere; [ ! -L t2/file ]")
    ).stdout == b"old\nnewfile\n"


async def test_a_folder_that_is_there_takes_the_tree_in(sandbox: LocalSandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True, mode=0o700)
    (source / "sub/new").write_text("new")
    (source / "both").write_text("new")
    (source / "l").symlink_to("both")
    await sandbox.exec("mkdir -m 755 -p t/sub; echo old > t/sub/old; echo old longer > t/both; ln -s nowhere t/l")
    await sandbox.upload_tree(source, "t")
    done = await sandbox.exec("cat t/sub/old t/both t/l t/sub/new; stat -c %a t/sub")
    assert done.stdout == b"old\nnewnewnew755\n"
    await sandbox.exec("rm -r t/both; mkdir t/both")
    with pytest.raises(SandboxError, match="'both' cannot be written"):
        await sandbox.upload_tree(source, "t")


@pytest.mark.parametrize("name", [b"/tmp/evil", b"../evil", b"a/../../evil", b"a//b", b".", b"a\0b"])
async def test_the_resident_writes_nothing_outside_the_target(sandbox: LocalSandbox, name: bytes) -> None:
    facts = b"420 0 1 0"
    root, end = [packing.FOLDER, b"", b"493 0 0 0", b""], [packing.END, b"", b"", b""]
    async with Transfer(sandbox.channel) as transfer:
        await transfer.answer(transfer.ask(b"in", b"t", b"agent"))
        records = [*root, packing.FILE, name, facts, b"", packing.DATA, b"0", b"x", b"", *end]
        with pytest.raises(OSError, match="is no path within a tree"):
            await transfer.answer(transfer.ask(b"piece", *records))
    assert (await sandbox.exec("ls -d /tmp/evil evil t/a a; ls -A t")).stdout == b""


async def test_a_tree_that_changes_while_it_is_read_is_read_to_an_end(sandbox: LocalSandbox, tmp_path: Path) -> None:
    churn = """i=0; while :; do i=$((i+1)); mkdir -p t/d$((i%7)); echo $i >> t/d$((i%7))/log; ln -sfn /etc t/d$((i%5))
        rm -rf t/d$((i%3)); mv t/d$((i%7)) t/m 2>/dev/null; rm -rf t/m; done"""
    await sandbox.exec("mkdir t; head -c 100000 /dev/zero > t/first")
    running = asyncio.ensure_future(sandbox.exec(churn, timeout_s=60))
    moves = [sandbox.download_tree("t", tmp_path / str(number)) for number in range(15)]
    ends = [(await asyncio.gather(move, return_exceptions=True))[0] for move in moves]
    for number, end in enumerate(ends):
        if end is None:
            assert (tmp_path / str(number) / "first").stat().st_size == 100_000
        else:
            assert "leads out of the tree" in str(end)
    assert not [name for name in contents(tmp_path) if b"passwd" in name]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert all(name.isdigit() for name in os.listdir(tmp_path))


async def test_a_file_that_grows_is_read_up_to_what_it_was(sandbox: LocalSandbox, tmp_path: Path) -> None:
    running = asyncio.ensure_future(sandbox.exec("while :; do head -c 65536 /dev/zero >> t; done", timeout_s=2))
    while (await sandbox.exec("[ -s t ]")).exit_code:
        continue
    await asyncio.wait_for(sandbox.download_tree("t", tmp_path / "t"), 30)
    assert (tmp_path / "t").stat().st_size > 0
    await running


async def test_what_the_agent_must_not_hand_out_is_refused(sandbox: LocalSandbox, tmp_path: Path) -> None:
    await sandbox.exec("mkdir p o; mkfifo p/pipe; ln -s /etc/passwd o/l; mkdir -p big; head -c 3000 /dev/zero > big/f")
    for name, why in (("p", "'p' is a 'pipe'|'pipe' is a 'pipe'"), ("o", "'l' leads out of the tree")):
        with pytest.raises(SandboxError, match=why):
            await sandbox.download_tree(name, tmp_path / "t")
    with pytest.raises(SandboxError, match="larger than 2999 bytes"):
        await sandbox.download_tree("big", tmp_path / "t", max_bytes=2999)
    for name in ("none", "big/f/below"):
        with pytest.raises(FileNotFoundError):
            await sandbox.download_tree(name, tmp_path / "t")
    assert os.listdir(tmp_path) == []
    await sandbox.download_tree("big", tmp_path / "t", max_bytes=3000)


# -- piece by piece


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
async def test_a_tree_of_the_tests_is_closed_to_the_agent(box: LocalSandbox, tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root gives the tests a user of their own")
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/answer").write_text("42")
    await box.upload_tree(tmp_path / "hidden", "/tmp/tests/hidden", user=TESTS)
    await box.upload_tree(tmp_path / "hidden", "/tmp/straight", user=TESTS)
    for folder in ("/tmp/tests/hidden", "/tmp/straight"):
        assert (await box.exec(f"cat {folder}/answer", user=TESTS)).stdout == b"42"
        assert (await box.exec(f"cat {folder}/answer; ls {folder}")).stdout == b""
        with pytest.raises(SandboxError, match="Permission denied"):
            await box.download_tree(folder, tmp_path / "back")
    with pytest.raises(SandboxError, match="the users"):
        await box.upload_tree(tmp_path / "hidden", "x", user="root")


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
