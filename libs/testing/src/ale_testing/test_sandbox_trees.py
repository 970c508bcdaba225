"""These tests check trees of files (`Trees`): they arrive unchanged, and a tree that is not allowed is refused and
leaves nothing."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from pathlib import Path

import pytest

from ale.errors import SandboxError
from ale.specs.sandbox import TESTS
from ale.specs.sandbox_protocols import Trees
from ale_testing.async_tests import async_test, cancelled, equal_without_diff, fails_with
from ale_testing.plugin_under_test import Subject
from ale_testing.sandbox_setup import EVERY_BYTE, LARGE, started

needs_trees = pytest.mark.ale_needs.with_args(Trees)

CONTENTS = {"run": b"#!/bin/sh\necho ran\n", "deep/er/every": EVERY_BYTE, "größe ✓ 'q\" $HOME": b"name", "empty": b""}


def make_tree(root: Path) -> Path:
    """A tree with files of several modes, links and an empty folder."""
    for name, data in CONTENTS.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    (root / "run").chmod(0o755)
    (root / "deep/er/every").chmod(0o600)
    (root / "nothing").mkdir(mode=0o750)
    (root / "link").symlink_to("deep/er/every")
    (root / "deep/up").symlink_to("../nothing")
    return root


def describe_tree(root: Path) -> dict[str, tuple[str, object]]:
    """What a tree holds: name -> mode, and content or a link's target."""
    found: dict[str, tuple[str, object]] = {}
    for path in [root, *sorted(root.rglob("*"))]:
        mode = stat.filemode(path.lstat().st_mode)
        held: object = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(root))] = ("link" if path.is_symlink() else mode, held)
    return found


def place(subject: Subject, name: str) -> Path:
    """A new folder of the host's for one test."""
    folder = subject.folder / f"trees-{name}"
    folder.mkdir()
    return folder


def names(folder: Path) -> list[str]:
    """What stands in a folder of the host's."""
    return sorted(os.listdir(folder))


def bind(listener: socket.socket, path: Path) -> None:
    """Put a socket down, however long its path is."""
    listener.bind(os.path.relpath(path))


def write(path: Path, data: bytes) -> Path:
    """A file of the host's."""
    path.write_bytes(data)
    return path


@needs_trees
@async_test
async def test_a_tree_is_the_same_after_upload_and_download(subject: Subject) -> None:
    here = place(subject, "round")
    source = make_tree(here / "source")
    async with started(subject) as (_, box):
        await box.upload_tree(source, "in/there")
        ran = await box.exec("in/there/run")
        assert ran.stdout == b"ran\n", "upload_tree must keep the executable bit: a program in the tree must run"
        held = await box.exec("cat in/there/link; cd in/there; [ -L link ] && [ -d nothing ] && echo; readlink deep/up")
        assert held.stdout == EVERY_BYTE + b"\n../nothing\n", "upload_tree must keep links as links, and empty folders"
        await box.download_tree("in/there", here / "back")
        assert describe_tree(here / "back") == describe_tree(source), (
            "a tree must come back as it went in: names, contents, modes, links"
        )
        assert names(here) == ["back", "source"], "download_tree must leave nothing beside its target"
        await box.upload_tree(source / "run", "one")
        await box.download_tree("one", here / "one")
        assert describe_tree(here / "one") == describe_tree(source / "run"), (
            "a single file must come through as a tree does"
        )


@needs_trees
@async_test
async def test_uploads_of_links_out_pipes_sockets_and_missing_trees_are_refused(subject: Subject) -> None:
    here = place(subject, "out")
    write(here / "secret", b"secret of the host")
    wrong = {
        "absolute": [("l", str(here / "secret"))],
        "upwards": [("l", "../secret")],
        "through": [("a", "."), ("l", "a/../secret")],
        "deep": [("sub/l", "../../secret")],
        "late": [("l", "z/secret"), ("z", "..")],
    }
    async with started(subject) as (_, box):
        for what, made in wrong.items():
            (here / what / "sub").mkdir(parents=True)
            for name, target in made:
                (here / what / name).symlink_to(target)
            await fails_with(
                box.upload_tree(here / what, what),
                SandboxError,
                why=f"upload_tree of a tree with a link out of it ({what})",
            )
            told = await box.exec(f"cat {what}/l {what}/sub/l")
            assert b"secret" not in told.stdout, "a file outside the tree must not come into the sandbox through a link"
        os.mkfifo(here / "sub-pipe")
        await fails_with(box.upload_tree(here / "sub-pipe", "p"), SandboxError, why="upload_tree of a pipe")
        with socket.socket(socket.AF_UNIX) as listener:
            (here / "s").mkdir()
            bind(listener, here / "s/socket")
            await fails_with(box.upload_tree(here / "s", "s"), SandboxError, why="upload_tree of a tree with a socket")
        await fails_with(box.upload_tree(here / "gone", "g"), FileNotFoundError, why="upload_tree of what is not there")


@needs_trees
@async_test
async def test_a_refused_download_writes_nothing(subject: Subject) -> None:
    here = place(subject, "hostile")
    write(here / "mine", b"mine")
    async with started(subject) as (_, box):
        made = await box.exec(
            "mkdir -p file abs up/d via/d big pipe; echo x > file/x; ln -s /etc/passwd abs/l; ln -s ../../x up/d/l; "
            "ln -s .. via/d/u; ln -s d/u/../x via/l; mkfifo pipe/p; head -c 5000 /dev/zero > big/b"
        )
        assert made.exit_code == 0, f"the test could not make its files: {made.output}"
        for name in ("abs", "up", "via"):
            await fails_with(
                box.download_tree(name, here / "target"),
                SandboxError,
                why=f"download_tree of a tree with a link out of it ({name})",
            )
            assert names(here) == ["mine"], f"after a refusal nothing may be left; there is {names(here)}"
        for name in ("pipe", "/dev/null"):
            await fails_with(box.download_tree(name, here / "target"), SandboxError, why=f"download_tree of {name}")
        await fails_with(
            box.download_tree("big", here / "target", max_bytes=4999),
            SandboxError,
            why="a tree that is larger than max_bytes",
        )
        for name in ("none", "file/x/below"):
            await fails_with(
                box.download_tree(name, here / "target"), FileNotFoundError, why=f"download_tree of {name}"
            )
        await fails_with(box.download_tree("file", here / "mine"), Exception, why="a target that is there already")
        assert names(here) == ["mine"], f"after a refusal nothing may be left; there is {names(here)}"
        assert (here / "mine").read_bytes() == b"mine", "what is at the target must stay as it is"
        await box.download_tree("big", here / "target", max_bytes=5000)
        assert (here / "target/b").read_bytes() == bytes(5000), "max_bytes is the size that still passes"


@needs_trees
@async_test
async def test_links_that_the_agent_planted_are_not_written_through(subject: Subject) -> None:
    here = place(subject, "planted")
    (here / "source/sub").mkdir(parents=True)
    write(here / "source/sub/file", b"new")
    write(here / "source/name", b"new")
    async with started(subject) as (_, box):
        await box.exec("mkdir other t u; echo old > other/file; ln -s ../other t/sub; ln -s ../other/file u/name")
        for target in ("t", "u"):
            try:
                await box.upload_tree(here / "source", target)
            except SandboxError:
                continue  # refused: as good
        kept = await box.exec("cat other/file")
        assert kept.stdout == b"old\n", "upload_tree must not write through a link that the agent put into the target"


@needs_trees
@async_test
async def test_other_calls_run_during_a_tree_transfer(subject: Subject) -> None:
    here = place(subject, "large")
    write(here / "large", LARGE * 3)
    async with started(subject) as (_, box):
        for move in (box.upload_tree(here / "large", "large"), box.download_tree("large", here / "back")):
            moving = asyncio.ensure_future(move)
            await asyncio.sleep(0)
            results = await asyncio.wait_for(asyncio.gather(*(box.exec(f"echo {i}") for i in range(4))), 60)
            assert [r.stdout for r in results] == [f"{i}\n".encode() for i in range(4)], "commands must run meanwhile"
            await moving
        assert equal_without_diff((here / "back").read_bytes(), LARGE * 3), "a large file must come back whole"


@needs_trees
@async_test
async def test_a_cancelled_transfer_leaves_no_files_and_the_sandbox_usable(subject: Subject) -> None:
    here, there = place(subject, "cancelled"), place(subject, "cancelled-source")
    for number in range(4):
        write(there / str(number), LARGE[: 1 << 21])
    async with started(subject) as (_, box):
        await box.upload_tree(there, "whole")
        for number, after_s in enumerate((0.0, 0.005, 0.03)):
            await cancelled(box.upload_tree(there, f"part{number}"), after_s)
            if await cancelled(box.download_tree("whole", here / "target"), after_s):
                assert names(here) == [], f"a cancelled download_tree must leave nothing; there is {names(here)}"
            elif "target" in names(here):
                (here / "target").rename(there.with_name(f"{there.name}-{number}"))
        assert (await box.exec("echo on")).stdout == b"on\n", "a sandbox must be usable after a cancelled transfer"
        await box.download_tree("whole", here / "target")
        assert equal_without_diff(describe_tree(here / "target"), describe_tree(there)), (
            "a cancelled transfer must not spoil a later one"
        )


@needs_trees
@async_test
async def test_a_stopped_sandbox_moves_no_tree(subject: Subject) -> None:
    here = place(subject, "stopped")
    async with started(subject, files={"file": b"1"}) as (_, box):
        await box.stop()
        await fails_with(
            box.upload_tree(write(here / "file", b"1"), "file"), SandboxError, why="upload_tree after stop()"
        )
        await fails_with(box.download_tree("file", here / "back"), SandboxError, why="download_tree after stop()")
        assert names(here) == ["file"], "a failed download_tree must leave nothing"


@needs_trees
@pytest.mark.ale_needs("users")
@async_test
async def test_a_tree_of_the_tests_is_hidden_from_the_agent(subject: Subject) -> None:
    here = place(subject, "tests")
    (here / "tests").mkdir(mode=0o755)
    write(here / "tests/answer", b"answer")
    async with started(subject) as (provider, box):
        if "users" not in provider.capabilities:
            return
        await box.upload_tree(here / "tests", "/tmp/kit/tests", user=TESTS)
        own = await box.exec("cat /tmp/kit/tests/answer", user=TESTS)
        assert own.stdout == b"answer", "the tests' user must read its tree"
        others = await box.exec("cat /tmp/kit/tests/answer")
        assert b"answer" not in others.stdout, "the agent must not read a tree of the tests' user"
