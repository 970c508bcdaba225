"""A snapshot holds what was in the sandbox, and sandboxes that start from it leave it alone."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from ale.specs.sandbox import TESTS, Resources, SandboxSpec
from ale_local import LocalSandboxProvider
from ale_sandbox.host.owned_folders import state_folder

from .conftest import as_root


def digest(folder: Path) -> str:
    """All that is in a folder, in short."""
    told = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        seen = path.lstat()
        told.update(f"{path} {seen.st_mode} {seen.st_uid} {seen.st_mtime_ns} {seen.st_ctime_ns}".encode())
        if stat.S_ISREG(seen.st_mode) and seen.st_size < 1 << 20:
            told.update(path.read_bytes())
    return told.hexdigest()


@as_root
async def test_a_layer_holds_owners_modes_and_links(wrapped: LocalSandboxProvider) -> None:
    async with await wrapped.start_sandbox(SandboxSpec(workdir="/home/agent/work/deep")) as box:
        await box.exec(
            "echo 1 > a; chmod 4711 a; mkdir -m 3770 shared; mkdir -m 000 shut; ln -s /etc/shadow l; mkfifo p; "
            "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('s')\"; touch -d 2001-02-03 a"
        )
        await box.upload({"/tmp/hidden/x": b"answer"}, user=TESTS, mode=0o640)
        name = await box.snapshot()
    (layer,) = (state_folder("local") / "snapshots").glob("layer-*")
    assert stat.S_IMODE(layer.parent.stat().st_mode) == 0o700
    seen = {path.name: path.lstat() for place in ("0/hidden", "2") for path in (layer / place).iterdir()}
    base = wrapped.config.uid_base
    assert {name: (stat.filemode(s.st_mode), s.st_uid - base, s.st_gid - base) for name, s in seen.items()} == {
        "x": ("-rw-r-----", 1001, 1001),
        "a": ("-rws--x--x", 1000, 1000),
        "shared": ("drwxrws--T", 1000, 1000),
        "shut": ("d---------", 1000, 1000),
        "l": ("lrwxrwxrwx", 1000, 1000),
        "p": ("prw-r--r--", 1000, 1000),
    }
    assert os.readlink(layer / "2/l") == "/etc/shadow"
    assert list((layer / "1/work/deep").iterdir()) == [], "a place within a place is a tree of its own"
    async with await wrapped.start_sandbox(SandboxSpec(from_snapshot=name, files={"b": b"2"})) as fork:
        assert (await fork.exec("pwd; ls; ls ~/work/deep; stat -c '%a %y' ~/work/deep/a | cut -c 1-15")).stdout == (
            b"/workspace\nb\na\nl\np\nshared\nshut\n4711 2001-02-03\n"
        )
        assert (await fork.exec("cat /tmp/hidden/x", user=TESTS)).stdout == b"answer"
        assert (await fork.exec("cat /tmp/hidden/x ~/work/deep/l")).stdout == b""


@as_root
async def test_forks_leave_the_layer_alone_and_know_nothing_of_others(wrapped: LocalSandboxProvider) -> None:
    async with await wrapped.start_sandbox(SandboxSpec()) as box:
        await box.exec("mkdir d; echo 1 > d/f; echo 1 > g")
        name = await box.snapshot()
        await box.snapshot("secret-project")
    folder = state_folder("local") / "snapshots"
    before = digest(folder)
    async with await wrapped.start_sandbox(SandboxSpec(from_snapshot=name)) as fork:
        await fork.exec(
            'echo 2 > d/f; rm g; python3 -c \'import os; os.rename("d", "e")\'; chmod 700 e; mkfifo e/p; '
            "touch -d 2001-01-01 e/f; ln e/f h"
        )
        assert (await fork.exec("cat e/f h; ls")).stdout == b"2\n2\ne\nh\n"
        told = (
            await fork.exec("cat /proc/self/mountinfo /proc/1/mountinfo; find / -xdev 2>/dev/null; env")
        ).stdout.decode()
        for word in ("secret-project", str(folder), "layer-"):
            assert word not in told
        flags = [line for line in told.splitlines() if " - overlay " in line]
        assert len(flags) >= 3
        assert all("nosuid,nodev" in line for line in flags)
        assert (
            await fork.exec("mknod e/null c 0 0; mknod e/zero c 1 5; umount /workspace; mount -o remount,suid /tmp")
        ).exit_code
    assert digest(folder) == before


@as_root
async def test_the_disk_of_a_fork_is_limited_by_what_it_writes(wrapped: LocalSandboxProvider) -> None:
    async with await wrapped.start_sandbox(SandboxSpec()) as box:
        await box.exec("head -c 12000000 /dev/zero > large")
        name = await box.snapshot()
    async with await wrapped.start_sandbox(SandboxSpec(from_snapshot=name, resources=Resources(disk_mib=8))) as fork:
        for folder in (".", "~", "/tmp"):
            done = await fork.exec(f"head -c 20000000 /dev/zero > {folder}/big; wc -c < {folder}/big; rm {folder}/big")
            assert 7_000_000 < int(done.stdout) < 9_000_000
        assert (await fork.exec("echo x >> large")).exit_code != 0, "what is written in it has to fit, too"
        assert (await fork.exec("wc -c < large")).stdout == b"12000000\n"
