"""Trees of files touch nothing outside of them, whatever is in them and whatever the agent has put in the way."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from ale.errors import SandboxError
from ale.specs.sandbox import TESTS
from ale_local import LocalSandbox
from ale_sandbox.host.tree_transfers import Transfer
from ale_sandbox.resident.trees import tree_reader

from .conftest import contents

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
    root, end = [tree_reader.FOLDER, b"", b"493 0 0 0", b""], [tree_reader.END, b"", b"", b""]
    async with Transfer(sandbox.channel) as transfer:
        await transfer.answer(transfer.ask(b"in", b"t", b"agent"))
        records = [*root, tree_reader.FILE, name, facts, b"", tree_reader.DATA, b"0", b"x", b"", *end]
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
