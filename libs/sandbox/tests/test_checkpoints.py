"""Snapshots with processes, with a real CRIU: what the conformance kit does not ask. Agents are root (see
`can_checkpoint`)."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.echo_service import echo
from support.sandbox_providers import answers, provider_of

from ale.errors import ConfigError, SandboxError
from ale.specs.sandbox import Resources, SandboxSpec
from ale.specs.sandbox_protocols import Checkpoints
from ale_sandbox.containers.checkpoints import ABOUT, ARCHIVE, DRAFT, PREFIX, CheckpointStore
from ale_sandbox.host.owned_folders import this_process

pytestmark = pytest.mark.podman

OWNER = """
import asyncio, sys
from support.sandbox_providers import provider_of
from ale.specs.sandbox import SandboxSpec
async def main():
    async with provider_of("podman", user="root") as provider:
        box = await provider.start_sandbox(SandboxSpec(id=sys.argv[1]))
        await box.exec("sleep 4733 >/dev/null 2>&1 &")
        unnamed, named = await box.checkpoint(), await box.checkpoint(sys.argv[1])
        fork = await provider.start_sandbox(SandboxSpec(id=sys.argv[1] + "-fork", from_snapshot=named))
        print(unnamed, named, flush=True)
        await fork.exec("sleep 4712")
asyncio.run(main())
"""
IMPOSTOR = """
import socket, time
while True:
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect("/.ale/control/socket")
            open("came", "w").close()
            sock.sendall(b"x" * 100)
            time.sleep(0.01)
    except OSError:
        pass
"""
TALK = """
import fcntl, socket, threading, time
lock = open("lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
server = socket.create_server(("127.0.0.1", 7000))
client, conn = socket.socketpair()
def serve():
    while data := conn.recv(100):
        conn.sendall(data)
threading.Thread(target=serve).start()
while True:
    client.sendall(b"ping")
    print(client.recv(100).decode(), flush=True)
    time.sleep(0.05)
"""


@pytest.fixture
async def provider() -> AsyncIterator[Any]:
    """Podman, with agents that are root."""
    if not await asyncio.to_thread(answers, "podman"):
        pytest.skip("podman does not answer")
    if shutil.which("criu") is None:
        pytest.skip("criu is not installed")
    async with provider_of("podman", user="root") as started:
        assert issubclass(started.sandbox_type, Checkpoints), "`criu check` says what is missing"
        yield started


async def test_the_endpoint_is_reached_where_it_goes_on(provider: Any) -> None:
    async with echo(b"hello\n") as port:
        spec = SandboxSpec(network="endpoint-only", endpoint=f"http://127.0.0.1:{port}")
        async with await provider.start_sandbox(spec) as box:
            reach = "head -n 1 <>/dev/tcp/127.0.0.1/8600; (exec 3<>/dev/tcp/10.1.2.3/80) 2>/dev/null || echo refused"
            before = (await box.exec(reach)).output
            assert before == "hello\nrefused\n"
            name = await box.checkpoint()
            assert (await box.exec(reach)).output == before
            async with echo(b"another\n") as its:
                changed = {"from_snapshot": name, "endpoint": f"http://127.0.0.1:{its}"}
                async with await provider.start_sandbox(spec.model_copy(update=changed)) as fork:
                    assert (await fork.exec(reach)).output == "another\nrefused\n", "by its own gate"
        with pytest.raises(ConfigError, match="holds processes of a sandbox with another network"):
            await provider.start_sandbox(SandboxSpec(from_snapshot=name))


@pytest.mark.parametrize("disk_mib", [None, 16])
async def test_files_memory_locks_and_sockets_are_kept(provider: Any, disk_mib: int | None) -> None:
    await provider.build_image(python=True)
    spec = SandboxSpec(image=None if disk_mib else "ale-python:1", resources=Resources(disk_mib=disk_mib))
    async with await provider.start_sandbox(spec) as box:
        if disk_mib is None:
            await box.upload({"talk.py": TALK.encode()})
            await box.exec("python3 talk.py >said 2>&1 & while [ ! -s said ]; do sleep 0.05; done")
        await box.exec("echo 1 > file; echo 2 > ~/file; echo 3 > /tmp/file; echo 4 > /dev/shm/file; mkfifo /tmp/p")
        await box.exec("x=secret; (read y < /tmp/p; echo $x$y > /tmp/told) >/dev/null 2>&1 &")
        name = await box.checkpoint()
        await box.exec("rm -rf * /tmp/* ~/*")
    async with await provider.start_sandbox(spec.model_copy(update={"from_snapshot": name})) as fork:
        told = await fork.exec(
            "cat file ~/file /tmp/file /dev/shm/file; echo 5 > /tmp/p; while [ ! -s /tmp/told ]; do sleep .05; done; "
            "cat /tmp/told"
        )
        assert told.output == "1\n2\n3\n4\nsecret5\n"
        if disk_mib is None:
            talks = "n=$(wc -l < said); echo $n; while [ $(wc -l < said) -le $n ]; do sleep 0.05; done"
            done = await fork.exec(f"{talks}; tail -n 1 said; flock -n lock true; echo $?; wc -l < said")
            before, last, locked, after = done.output.split()
            assert (last, locked) == ("ping", "1"), "the sockets and the lock are there"
            assert int(after) > int(before), "they talk on"
            assert (await fork.exec("exec 3<>/dev/tcp/127.0.0.1/7000; echo $?")).output == "0\n", "and it listens"


async def test_what_cannot_be_kept_is_a_sentence_and_everything_goes_on(provider: Any) -> None:
    async with await provider.start_sandbox(SandboxSpec()) as box:
        await box.exec("head -c 5000000 /dev/zero > f; (exec 3<f; rm f; exec sleep 1000) >/dev/null 2>&1 &")
        await box.exec("x=1; while [ -e f ]; do sleep 0.05; done")
        with pytest.raises(SandboxError, match=r"could not checkpoint the processes of .*: CRIU failed: .*ghost"):
            await box.checkpoint()
        assert (await box.exec("echo on")).output == "on\n"
        assert not list(provider.checkpoints.folder.glob(f"{DRAFT}{this_process()}*")), "nothing half-written is left"
        await box.kill_agent_processes()
        assert (await box.checkpoint()).startswith(PREFIX)
    async with await provider.start_sandbox(SandboxSpec(network="allow", allow=("a.test:80",))) as box:
        with pytest.raises(ConfigError, match="has the network 'allow'"):
            await box.checkpoint()


async def test_a_connection_cannot_be_kept(provider: Any) -> None:
    async with echo() as port:
        spec = SandboxSpec(network="endpoint-only", endpoint=f"http://127.0.0.1:{port}")
        async with await provider.start_sandbox(spec) as box:
            await box.exec(
                "exec 3<>/dev/tcp/127.0.0.1/8600; (echo hi >&3; head -n 1 <&3 >heard; exec sleep 1000) >/dev/null 2>&1 "
                "&"
            )
            await box.exec("while [ ! -s heard ]; do sleep 0.05; done")
            with pytest.raises(SandboxError, match=r"CRIU failed: .*onnect"):
                await box.checkpoint()
            await box.kill_agent_processes()
            await box.checkpoint()


async def test_nobody_else_in_there_becomes_its_resident(provider: Any) -> None:
    await provider.build_image(python=True)
    async with await provider.start_sandbox(
        SandboxSpec(image="ale-python:1", files={"i.py": IMPOSTOR.encode()})
    ) as box:
        await box.exec("touch /.ale/control/x || exit; echo written")
        for _ in range(3):
            await box.exec("for i in 1 2 3; do python3 i.py >/dev/null 2>&1 & done")
        name = await box.checkpoint()
        assert (await box.exec("ls /.ale/control; pkill python3; echo on")).output == "on\n"
        async with await provider.start_sandbox(SandboxSpec(image="ale-python:1", from_snapshot=name)) as fork:
            assert (await fork.exec("echo on")).output == "on\n"


async def test_a_sandbox_that_is_stopped_meanwhile_ends_at_once(provider: Any) -> None:
    box = await provider.start_sandbox(SandboxSpec())
    making = asyncio.ensure_future(box.checkpoint())
    await asyncio.sleep(0.05)
    await asyncio.wait_for(box.stop(), 20)
    with pytest.raises(SandboxError):
        await making
    assert box.id not in {found.id for found in await provider.list()}


async def test_a_damaged_one_is_a_sentence(provider: Any) -> None:
    async with await provider.start_sandbox(SandboxSpec()) as box:
        name = await box.checkpoint()
    archive = provider.checkpoints.find(name).archive
    archive.write_bytes(archive.read_bytes()[:100_000])
    with pytest.raises(SandboxError, match=r"is damaged .*; remove that snapshot and make another"):
        await provider.start_sandbox(SandboxSpec(from_snapshot=name))
    (archive.parent / ABOUT).write_text("{")
    with pytest.raises(ConfigError, match=f"There is no snapshot {name}"):
        await provider.start_sandbox(SandboxSpec(from_snapshot=name))


async def test_of_a_killed_owner_only_what_has_a_name_is_left(provider: Any) -> None:
    tag = f"ale-check-{os.getpid()}"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    owner = await asyncio.to_thread(
        subprocess.Popen, [sys.executable, "-c", OWNER, tag], stdout=subprocess.PIPE, env=env
    )
    assert owner.stdout is not None
    unnamed, named = (await asyncio.to_thread(owner.stdout.readline)).decode().split()
    try:
        assert {unnamed, named} <= set(await provider.snapshots())
        owner.kill()
        owner.wait()
        await provider.prune()
        left = set(await provider.snapshots())
        assert unnamed not in left
        assert named in left
        assert not [found.id for found in await provider.list() if found.id.startswith(tag)], "the fork is gone too"
        async with await provider.start_sandbox(SandboxSpec(from_snapshot=named)) as again:
            assert "sleep 4733" in (await again.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).output
    finally:
        await provider.remove_snapshot(named)


def test_what_a_killed_process_was_writing_goes(tmp_path: Any) -> None:
    kept = CheckpointStore(tmp_path)
    dead, mine = kept.draft("a"), kept.draft("b")
    moved = dead.folder.with_name(f"{DRAFT}999999-1-abcd")
    dead.folder.rename(moved)
    for name, owner in (("named", None), ("unnamed-1", "999999-1"), ("unnamed-2", this_process())):
        (kept.folder / name).mkdir()
        (kept.folder / name / ABOUT).write_text(json.dumps({"spec": {}, "owner": owner}))
        (kept.folder / name / ARCHIVE).touch()
    kept.sweep()
    assert not moved.exists()
    assert mine.folder.exists()
    assert kept.names() == [f"{PREFIX}named", f"{PREFIX}unnamed-2"]
    for wrong in (f"{PREFIX}../x", PREFIX, f"{PREFIX}.", f"{PREFIX}a/b"):
        with pytest.raises(ConfigError, match="There is no snapshot"):
            kept.find(wrong)
        kept.remove(wrong)
    assert len(kept.names()) == 2
