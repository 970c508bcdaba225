"""Containers of a real engine: what the conformance kit does not ask, since it holds for containers alone."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.sandbox_providers import provider_of

from ale.errors import ConfigError, SandboxError
from ale.specs.sandbox import TESTS, Resources, SandboxSpec
from ale_sandbox.containers.engine import LABEL, ContainerPlan
from ale_sandbox.containers.image_snapshots import OWNER
from ale_sandbox.containers.planning import CREATED
from ale_sandbox.host.owned_folders import state_folder, this_process

OWNER_PROGRAM = """
import asyncio, sys
from ale.registry.drivers import build_driver
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale.specs.sandbox import SandboxSpec
async def main():
    provider = build_driver("sandbox", PluginChoice(use=sys.argv[1]), DriverContext())
    await provider.start()
    box = await provider.start_sandbox(SandboxSpec(id=sys.argv[2]))
    await box.exec("setsid sleep 4711 >/dev/null 2>&1 &")
    print("ready", flush=True)
    await box.exec("sleep 4712")
asyncio.run(main())
"""


async def eventually(holds: Callable[[], Any], seconds: float = 120.0) -> bool:
    """Whether something comes to hold."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if await holds():
            return True
        await asyncio.sleep(0.1)
    return False


async def names(provider: Any) -> set[str]:
    """The containers that the engine has of ours."""
    return {found.name for found in await provider.engine.containers()}


async def test_an_owner_that_is_killed_leaves_nothing(provider: Any, engine: str) -> None:
    name = f"ale-test-{os.getpid()}-{engine}"
    command = [sys.executable, "-c", OWNER_PROGRAM, engine, name]
    owner = await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    assert await asyncio.to_thread(owner.stdout.readline) == b"ready\n"
    assert name in await names(provider)
    owner.kill()
    owner.wait()

    async def gone() -> bool:
        return name not in await names(provider)

    assert await eventually(gone), "the container ends with its owner, and the engine removes it"
    async with provider_of(engine):
        left = [path.name for path in state_folder(engine).glob(f"base-{owner.pid}-*")]
        assert left == [], "the next start removes its folder"


async def test_what_a_dead_owner_never_started_is_removed_by_the_next_start(provider: Any, engine: str) -> None:
    name = f"ale-test-{os.getpid()}-{engine}-stale"
    await provider.images.provide("ale-base:1")
    labels = {LABEL: name, OWNER: "999999-1", CREATED: "0"}
    await provider.engine.create(ContainerPlan(name, "ale-base:1", ["/bin/sh"], labels, (), False, Resources(), ()))
    # It is there now, unless a provider of another test, which starts at this moment, has removed it already.
    async with provider_of(engine) as other:
        assert name not in await names(other)


async def test_an_image_that_is_not_there_is_a_sentence(provider: Any) -> None:
    async def own() -> set[str]:
        found = await provider.engine.containers()
        return {one.name for one in found if one.labels[OWNER] == this_process()}

    before = await own()
    with pytest.raises(
        ConfigError, match=r"has no image no-such-image:7.*Build it \(`(docker|podman) build -t no-such-image:7"
    ):
        await provider.start_sandbox(SandboxSpec(image="no-such-image:7"))
    with pytest.raises(ConfigError, match="There is no snapshot ale-snapshot:none"):
        await provider.start_sandbox(SandboxSpec(from_snapshot="ale-snapshot:none"))
    assert await own() == before, "nothing was made that would have to be removed"


async def test_an_image_that_somebody_removed_is_missing_and_one_that_is_there_again_is_used(provider: Any) -> None:
    spec = SandboxSpec(image="ale-test-removed:1")
    async with await provider.start_sandbox(SandboxSpec()) as box:
        await provider.engine.commit(box.id, "ale-test-removed:1")
        try:
            await (await provider.start_sandbox(spec)).stop()
            assert await provider.engine.remove_image("ale-test-removed:1")
            with pytest.raises(ConfigError, match="has no image ale-test-removed:1"):
                await provider.start_sandbox(spec)
            await provider.engine.commit(box.id, "ale-test-removed:1")
            await (await provider.start_sandbox(spec)).stop()
        finally:
            await provider.engine.remove_image("ale-test-removed:1")


async def test_an_image_needs_nothing_but_a_shell(provider: Any, engine: str) -> None:
    busybox = shutil.which("busybox", path="/bin:/usr/bin")
    if busybox is None:
        pytest.skip("busybox is not installed")
    with io.BytesIO() as whole:
        with tarfile.open(fileobj=whole, mode="w") as tar:
            tar.add(busybox, "bin/busybox")
            for name in ("sh", "cat", "id", "ls"):
                link = tarfile.TarInfo(f"bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
        await provider.engine.import_image("ale-test-bare:1", whole.getvalue())
    try:
        spec = SandboxSpec(image="ale-test-bare:1", files={"a": b"1"})
        async with await provider.start_sandbox(spec) as box:
            done = await box.exec("id -u; cat a")
            assert done.stdout == b"1000\n1", done.output
            async with await box.open_shell() as shell:
                await shell.run("x=1; cd /tmp; f() { echo f$x; }")
                assert (await shell.run("f; exit 3")).exit_code == 3
                assert (await shell.run("while :; do :; done", timeout_s=0.3)).exit_code == 124
                assert (await shell.run("f; pwd; id -u")).stdout == b"f1\n/tmp\n1000\n"
    finally:
        await provider.engine.remove_image("ale-test-bare:1")


async def test_a_limited_disk_is_full_when_it_is_full(provider: Any) -> None:
    async with await provider.start_sandbox(SandboxSpec(resources=Resources(disk_mib=8))) as box:
        for folder in ("/workspace", "/tmp", "$HOME"):
            done = await box.exec(f"head -c 20000000 /dev/zero > {folder}/big; wc -c < {folder}/big; rm {folder}/big")
            assert 7_000_000 < int(done.stdout.split()[-1]) < 9_000_000
        for folder in ("/", "/usr", "/etc", "/opt", "/var"):
            assert (await box.exec(f"touch {folder}/x")).exit_code != 0
        with pytest.raises(ConfigError, match=r"cannot make snapshots: with disk_mib its files lie in memory"):
            await box.snapshot()


async def test_an_agent_that_is_root_is_root_in_there_alone(engine: str, tmp_path: Path) -> None:
    async with provider_of(engine, user="root") as provider:
        assert "users" not in provider.capabilities
        async with await provider.start_sandbox(SandboxSpec()) as box:
            assert (await box.exec("id -u; touch /etc/mine; echo $HOME")).stdout == b"0\n/root\n"
            assert (await box.exec("id -u", user=TESTS)).stdout == b"0\n"
            for forbidden in ("mount -t tmpfs x /mnt", "mknod /dev/sda b 8 0", "echo 1 > /proc/sys/kernel/sysrq"):
                assert (await box.exec(forbidden)).exit_code != 0, forbidden
            assert (await box.exec("cat /proc/1/environ; kill -9 1; kill -STOP 1; echo on")).stdout == b"on\n"


async def test_a_spec_may_choose_who_the_agent_is_and_how_many_files_are_open(provider: Any) -> None:
    spec = SandboxSpec(user="root", resources=Resources(open_files=99))
    async with await provider.start_sandbox(spec) as box:
        assert (await box.exec("id -u; ulimit -n; touch /etc/mine")).output == "0\n99\n"
    async with await provider.start_sandbox(SandboxSpec(user="agent")) as box:
        assert (await box.exec("id -u; ulimit -n")).output == "1000\n4096\n"


@pytest.mark.parametrize("user", ["agent", "root"])
async def test_the_rights_that_set_a_network_up_are_gone_before_anything_runs(provider: Any, user: Any) -> None:
    network = (1 << 10) | (1 << 12) | (1 << 13)
    async with await provider.start_sandbox(SandboxSpec(network="allow", allow=("a.test:80",), user=user)) as box:
        await box.kill_agent_processes()  # so that it was started again, too
        said = (await box.exec("cat /proc/[0-9]*/status")).output
        held = [
            int(line.split()[1], 16) for line in said.splitlines() if line.startswith(("CapEff", "CapPrm", "CapInh"))
        ]
        assert len(held) >= 9, "the resident, the relay, the command"
        assert not any(caps & network for caps in held)
        assert (await box.exec("ls /sys/class/net; ip link add x type dummy")).output.startswith("lo\n")


async def test_with_the_whole_network_the_endpoint_is_where_it_always_is(provider: Any) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello\n")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        spec = SandboxSpec(network="full", endpoint=f"http://127.0.0.1:{port}")
        async with await provider.start_sandbox(spec) as box:
            assert box.endpoint_url == "http://127.0.0.1:8600"
            assert (await box.exec("head -n 1 <>/dev/tcp/127.0.0.1/8600")).output == "hello\n"


async def test_the_agent_has_no_right_but_those_of_a_user(provider: Any) -> None:
    async with await provider.start_sandbox(SandboxSpec()) as box:
        status = (await box.exec("cat /proc/self/status")).stdout.decode()
        values = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert {values[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
        assert (values["NoNewPrivs"], values["Seccomp"]) == ("1", "2")
        assert (await box.exec("ls /.ale/control; echo x > /.ale/bin/python3")).exit_code != 0
        assert (await box.exec("ls /sys/class/net")).stdout == b"lo\n"
        assert (await box.exec("ls /var/run/docker.sock /run/podman")).exit_code != 0


async def test_unnamed_snapshots_go_with_their_provider_and_named_ones_stay(engine: str) -> None:
    async with provider_of(engine) as provider:
        box = await provider.start_sandbox(SandboxSpec())
        await box.exec("echo kept > note")
        unnamed, named = await box.snapshot(), await box.snapshot(f"test-{os.getpid()}")
    async with provider_of(engine) as other:
        assert not await other.engine.find_image(unnamed)
        try:
            async with await other.start_sandbox(SandboxSpec(from_snapshot=named)) as again:
                assert await again.download("note") == b"kept\n"
        finally:
            await other.engine.remove_image(named)


async def test_an_engine_that_does_not_answer_is_a_sentence(engine: str) -> None:
    with pytest.raises(ConfigError, match=r"does not answer .*choose sandbox: local"):
        async with provider_of(engine, url="unix:///no/such.sock"):
            pass


async def test_a_container_that_ends_is_a_dead_sandbox(provider: Any) -> None:
    box = await provider.start_sandbox(SandboxSpec())
    running = asyncio.ensure_future(box.exec("sleep 60"))
    await asyncio.sleep(0.2)
    await provider.engine.remove(box.id)
    with pytest.raises(SandboxError):
        await asyncio.wait_for(running, 120)
    await box.stop()
