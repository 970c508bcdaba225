"""A tree of files that is uploaded and downloaded again is as it was, in both modes."""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ale.errors import SandboxError
from ale.specs.sandbox import SandboxSpec
from ale_local import LocalSandbox

from .conftest import contents, provider_for

NAMES = st.binary(min_size=1, max_size=12).filter(lambda name: name not in (b".", b"..") and not set(name) & {0, 47})
FILES = st.tuples(st.binary(max_size=2000), st.sampled_from([0o600, 0o644, 0o755, 0o444, 0o640]))
TREES = st.recursive(FILES, lambda below: st.dictionaries(NAMES, below, max_size=5), max_leaves=20)


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
