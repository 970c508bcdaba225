"""Files in and out, in both modes."""

from __future__ import annotations

import pytest

from ale.errors import SandboxError
from ale_local import LocalSandbox, LocalSandboxProvider

from .conftest import spec_of


async def test_any_bytes_go_in_and_come_out(sandbox: LocalSandbox) -> None:
    big = bytes(range(256)) * 16384
    await sandbox.upload({"deep/er/big": big, "empty": b"", "naïve name\n": b"x"})
    assert await sandbox.download("deep/er/big") == big
    assert await sandbox.download("empty") == b""
    assert await sandbox.download("naïve name\n") == b"x"
    assert (await sandbox.exec("stat -c %U,%a deep/er/big")).stdout.strip().endswith(b",644")


async def test_an_upload_replaces_and_sets_the_mode(sandbox: LocalSandbox) -> None:
    await sandbox.upload({"run.sh": b"#!/bin/sh\necho longer than the next\n"})
    await sandbox.upload({"run.sh": b"#!/bin/sh\necho hi\n"}, mode=0o755)
    assert (await sandbox.exec("./run.sh")).stdout == b"hi\n"


async def test_the_agent_may_change_what_was_uploaded(sandbox: LocalSandbox) -> None:
    await sandbox.upload({"sub/a": b"1"})
    assert (await sandbox.exec("echo 2 > sub/a && rm sub/a && touch sub/b")).exit_code == 0


async def test_downloads_fail_as_the_path_deserves(sandbox: LocalSandbox) -> None:
    await sandbox.exec("mkdir folder; mkfifo pipe; touch file; head -c 5000 /dev/zero > long")
    with pytest.raises(FileNotFoundError):
        await sandbox.download("none")
    with pytest.raises(FileNotFoundError):
        await sandbox.download("file/below")
    with pytest.raises(IsADirectoryError):
        await sandbox.download("folder")
    with pytest.raises(SandboxError, match="regular"):
        await sandbox.download("pipe")
    with pytest.raises(SandboxError, match="larger than 100"):
        await sandbox.download("long", max_bytes=100)


async def test_an_upload_that_fails_says_which_file(sandbox: LocalSandbox) -> None:
    await sandbox.exec("touch file")
    with pytest.raises(SandboxError, match="file/below"):
        await sandbox.upload({"file/below": b"x"})


async def test_the_files_of_the_spec_are_there_at_the_start(provider: LocalSandboxProvider) -> None:
    spec = spec_of(provider, files={"src/main.py": b"print('hello')\n"}, env={"WHO": "me"})
    async with await provider.start_sandbox(spec) as sandbox:
        assert (await sandbox.exec("python3 src/main.py; echo $WHO")).stdout == b"hello\nme\n"


async def test_home_and_temporary_folder_can_be_written_to(sandbox: LocalSandbox) -> None:
    result = await sandbox.exec('touch "$HOME/a" "$(mktemp -d)/b" && echo ok')
    assert result.stdout == b"ok\n"
