"""Another process attaches to a sandbox through its owner: who may, and how it learns of the end."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ale.errors import SandboxError
from ale.specs.driver import DriverContext
from ale.specs.sandbox import SandboxSpec
from ale_sandbox.host.owned_folders import start_time
from ale_sandbox.resident.frames import frame
from ale_sandbox.sandboxes.attach_client import attach
from ale_sandbox.sandboxes.attach_server import NAME, OPEN

from .attached_client import Client, eventually, spec_for, works


async def test_a_provider_that_was_not_started_attaches_through_the_owners_door(any_provider: Any) -> None:
    async with await any_provider.start_sandbox(spec_for(any_provider, files={"a": b"1"})) as box:
        other = type(any_provider)(any_provider.config, DriverContext())
        async with await other.attach(box.id) as there:
            assert there.spec == box.spec.model_copy(update={"files": {}})
            assert (await there.exec("cat a; exit 3")).exit_code == 3
        assert await works(box)
        assert await eventually(lambda: f"process {os.getpid()} has detached\n" in str(box.journal))
        log = await box.logs()
        assert f"process {os.getpid()} is attached\n" in log
        assert f"(process {os.getpid()}) exec" in log


async def test_half_a_character_in_the_environment_or_a_command_keeps_the_connection(local: Any) -> None:
    async with await local.start_sandbox(SandboxSpec(env={"HALF": "a\ud800"})) as box:
        async with await local.attach(box.id) as there:
            assert there.spec.env == {"HALF": "a\ud800"}
            done = await there.exec('printf %s "$HALF$OTHER\ud800"', env={"OTHER": "b\ud800"})
            assert (done.exit_code, done.stdout) == (0, b"a\xed\xa0\x80b\xed\xa0\x80\xed\xa0\x80")
            assert await works(there), "the same connection serves what follows"
        assert "printf" in await box.logs()
        with pytest.raises(SandboxError):
            await local.attach("no-such-\ud800")
        assert await works(box)


async def test_the_attach_server_is_the_users_alone_and_goes_with_the_provider(local: Any) -> None:
    path: Path = local.base / NAME
    found = os.stat(path)
    assert stat.S_ISSOCK(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert found.st_uid == os.getuid()
    await local.close()
    with pytest.raises(FileNotFoundError):
        os.stat(path)


VISITOR = """
import os, socket, sys
folder, frame, uid = sys.argv[1:]
os.chdir(folder)
if int(uid) != os.getuid():
    os.setgroups([])
    os.setuid(int(uid))
with socket.socket(socket.AF_UNIX) as sock:
    try:
        sock.connect(".attach")
        sock.sendall(bytes.fromhex(frame))
        print(len(sock.recv(100)))
    except (BrokenPipeError, ConnectionResetError):
        print(0)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
async def test_another_user_is_turned_away_even_where_the_file_would_let_it_in(local: Any, box: Any) -> None:
    os.chmod(local.base / NAME, 0o666)
    heard = []
    for uid in (os.getuid(), 65534):
        command = [sys.executable, "-c", VISITOR, str(local.base), frame(1, OPEN, [box.id.encode()]).hex(), str(uid)]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
        heard.append(int(done.stdout))
    assert heard[0] > 0
    assert heard[1] == 0


async def test_no_door_is_seen_from_inside(any_provider: Any) -> None:
    if "isolated" not in any_provider.capabilities:
        return
    async with await any_provider.start_sandbox(spec_for(any_provider)) as box:
        look = "find / -path /proc -prune -o -path /usr -prune -o -path /sys -prune -o -name '.d*r' -print"
        await box.exec("touch /tmp/.decoder")
        found = (await box.exec(f"{look} 2>/dev/null; ls -a {any_provider.base}")).stdout
        assert found == b"/tmp/.decoder\n"


async def test_an_owner_that_is_gone_is_told_of(local: Any) -> None:
    with pytest.raises(SandboxError, match=r"that started the sandbox x is gone; `ale sandbox prune` removes"):
        await attach(local.folder, "999999-1", "x")
    other = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        said = rf"process {other.pid} owns the sandbox x, and attaching to it failed: it is"
        with pytest.raises(SandboxError, match=said):
            await attach(local.folder, f"{other.pid}-{start_time(other.pid)}", "x")
    finally:
        other.kill()
        await other.wait()


async def test_the_reason_of_the_end_reaches_who_is_attached(local: Any) -> None:
    box = await local.start_sandbox(spec_for(local, lifetime_s=3.0))
    async with await local.attach(box.id) as there:
        with pytest.raises(SandboxError, match=f"The sandbox {box.id} is out of reach: its lifetime is over"):
            await there.exec("sleep 60")


async def test_closing_a_provider_sends_away_who_is_attached(local: Any) -> None:
    box = await local.start_sandbox(spec_for(local))
    there = await local.attach(box.id)
    stuck = Client(local)  # has said nothing yet
    running = asyncio.ensure_future(there.exec("sleep 60"))
    await asyncio.sleep(0.1)
    await asyncio.wait_for(local.close(), 30)
    with pytest.raises(SandboxError, match="is out of reach: it was stopped"):
        await running
    assert await stuck.answer() is None
    stuck.close()
    await there.stop()
