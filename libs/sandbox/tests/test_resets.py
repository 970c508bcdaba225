"""Resets of containers: what a root file system that can be written to adds to what the conformance kit asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.sandbox_providers import provider_of

from ale.errors import UncleanError
from ale.specs.sandbox import TESTS, Resources, SandboxSpec
from ale_sandbox.containers.default_image import PYTHON, TAG

SPEC = SandboxSpec(image=f"{PYTHON}:{TAG}")
IN_MEMORY = SandboxSpec(resources=Resources(disk_mib=16))
WORK = (
    "echo 1 > a; mkdir -p b/c /tmp/d ~/e /var/tmp/f; ln -s /etc/passwd l; chmod 700 .; "
    "(setsid sleep 100 >/dev/null 2>&1 &)"
)
TALK = """python3 -B -c '
import socket
s = socket.create_server(("127.0.0.1", 0)); c = socket.create_connection(s.getsockname())
a, _ = s.accept(); c.close(); a.close()'"""
CHANGES = {
    "a file is written to": ("echo x >> /etc/group", "/etc/group"),
    "a file is written to and its times are set back": (
        "cp -p /etc/group /tmp/kept; echo x >> /etc/group; touch -r /tmp/kept /etc/group",
        "/etc/group",
    ),
    "a file is another with the same content": ("cp -p /etc/group /etc/g; mv /etc/g /etc/group", "/etc"),
    "a file is gone": ("rm /etc/group", "/etc"),
    "a file is new": ("touch -d 2001-01-01 /etc/new; touch -d 2001-01-01 /etc", "/etc"),
    "a file is hidden far below": ("mkdir -p /usr/share/a/b/c; touch /usr/share/a/b/c/d", "/usr/share"),
    "a program may do more": ("chmod u+s /bin/ls", "/bin"),
    "a file is another's": ("chown 1000 /etc/group", "/etc/group"),
    "a file has another name too": ("ln /etc/group /tmp/g", "/etc/group"),
    "a file has an attribute": ('python3 -B -c \'import os; os.setxattr("/etc/group", "user.x", b"1")\'', "/etc/group"),
    "a file is changed through memory": (
        'python3 -B -c \'import mmap; f = open("/etc/group", "r+b"); m = mmap.mmap(f.fileno(), 0); m[0] = 88; '
        "m.flush()'",
        "/etc/group",
    ),
    "the work folder is a link": ("d=$PWD; cd /; rm -rf $d; ln -s /etc $d", "/workspace"),
    "the folder above home is another": ("mv /root /root2; mkdir /root", "/"),
    "a device is gone": ("rm /dev/full", "/dev/full"),
    "the table of hosts is another": ("echo 1.2.3.4 pypi.org >> /etc/hosts", "/etc/hosts"),
}


@pytest.fixture
async def as_root(engine: str) -> AsyncIterator[Any]:
    """A provider whose agents are root."""
    async with provider_of(engine, user="root") as started:
        await started.images.provide("ale-base:1")
        if not await started.engine.find_image(SPEC.image):
            await started.build_image(python=True)
        yield started


@pytest.mark.parametrize("spec", [SandboxSpec(), IN_MEMORY], ids=["in a layer", "in memory"])
async def test_what_an_agent_does_in_its_folders_is_taken_away(provider: Any, spec: SandboxSpec) -> None:
    async with await provider.start_sandbox(spec) as box:
        look = "ls -lAn . ~ /tmp /var/tmp; ls -ldn . ~ /tmp /var/tmp; ls -d /proc/[0-9]*"
        await box.reset(spec)
        fresh = (await box.exec(look, user=TESTS)).output.split("/proc/")
        for _ in range(3):
            await box.exec(WORK)
            await box.upload({"/tmp/hidden/t": b"x", "mine": b"y"}, user=TESTS)
            await box.reset(spec)
            seen = (await box.exec(look, user=TESTS)).output.split("/proc/")
            assert (seen[0], len(seen)) == (fresh[0], len(fresh))


@pytest.mark.parametrize("what", CHANGES, ids=lambda what: what.replace(" ", "-"))
async def test_an_image_that_was_changed_cannot_be_brought_back(as_root: Any, what: str) -> None:
    command, path = CHANGES[what]
    async with await as_root.start_sandbox(SPEC) as box:
        await box.reset(SPEC)
        done = await box.exec(command)
        assert done.exit_code == 0, done.output
        with pytest.raises(UncleanError, match="files: ") as caught:
            await box.reset(SPEC)
        assert caught.value.what == "files"
        assert path in str(caught.value), "it names the first difference"


async def test_an_agent_that_is_root_is_reset_where_it_changed_nothing_else(as_root: Any) -> None:
    async with await as_root.start_sandbox(SPEC) as box:
        for _ in range(2):
            await box.exec(
                "cat /etc/group /bin/ls > /dev/null; echo 1 > a; echo 2 > ~/b; mkdir -p /tmp/c; chown -R 4242 /tmp/c"
            )
            await box.reset(SPEC)
            assert (await box.exec("ls -A . /tmp; ls ~")).stdout.split() == [b".:", b"/tmp:"]


async def test_what_the_tests_user_changed_outside_is_seen(provider: Any) -> None:
    async with await provider.start_sandbox(SandboxSpec()) as box:
        assert (await box.exec("echo x >> /etc/group", user=TESTS)).exit_code == 0, (
            "it may read and write what it likes"
        )
        with pytest.raises(UncleanError, match="/etc/group"):
            await box.reset(SandboxSpec())


async def test_a_root_that_resets_its_own_priority_or_limits_is_seen(as_root: Any) -> None:
    async with await as_root.start_sandbox(SPEC) as box:
        await box.exec("python3 -B -c 'import os, resource; resource.prlimit(1, resource.RLIMIT_NOFILE, (99, 99))'")
        with pytest.raises(UncleanError) as caught:
            await box.reset(SPEC)
        assert caught.value.what == "resident"


async def test_closed_connections_are_forgotten_where_there_is_no_way_out(as_root: Any) -> None:
    async with await as_root.start_sandbox(SPEC) as box:
        assert (await box.exec(TALK)).exit_code == 0
        await box.reset(SPEC)


async def test_a_program_that_waits_for_the_endpoint_is_not_heard_after_a_reset(provider: Any) -> None:
    heard = asyncio.Queue[bytes]()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.put_nowait(await reader.read(100))
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    spec = SandboxSpec(network="endpoint-only", endpoint=f"http://127.0.0.1:{port}")
    say = "exec 3<>/dev/tcp/127.0.0.1/8600; echo {} >&3; read -t 5 -u 3; true"
    try:
        async with await provider.start_sandbox(spec) as box:
            await box.exec(say.format("old"), timeout_s=10)
            assert await asyncio.wait_for(heard.get(), 10) == b"old\n"
            await box.exec(f"for i in 1 2 3 4 5 6 7 8; do ({say.format('late')}) & done", timeout_s=10)
            await box.reset(spec)
            while not heard.empty():
                heard.get_nowait()
            await box.exec(say.format("new"), timeout_s=10)
            assert await asyncio.wait_for(heard.get(), 10) == b"new\n"
            assert heard.empty()
    finally:
        server.close()


async def test_labels_are_those_of_the_new_spec(provider: Any) -> None:
    async with await provider.start_sandbox(SandboxSpec(labels={"episode": "1"})) as box:
        await box.reset(SandboxSpec(labels={"episode": "2"}))
        (line,) = [info for info in await provider.list() if info.id == box.id]
        assert line.labels == {"episode": "2"}
