"""Snapshots and what starts from them: consistent, apart, limited, and nothing is left behind however they end."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ale.errors import ConfigError, SandboxError
from ale.specs.driver import DriverContext
from ale.specs.sandbox import TESTS, Resources, SandboxSpec
from ale.specs.sandbox_protocols import Snapshots
from ale_local import LocalSandbox, LocalSandboxConfig, LocalSandboxProvider, launcher, state
from ale_local.layers import Layers
from ale_resident.host.owner import start_time, state_folder
from ale_resident.trees.transfers import Transfer

from .conftest import provider_for
from .test_lifetime import eventually, sleepers

as_root = pytest.mark.skipif(os.getuid() != 0, reason="overlays are for root")
OWNER = """
import asyncio, sys, tempfile
tempfile.tempdir = sys.argv[1]
from ale.specs.driver import DriverContext
from ale.specs.sandbox import Resources, SandboxSpec
from ale_local import LocalSandboxConfig, LocalSandboxProvider
async def main():
    config = LocalSandboxConfig(isolation="bubblewrap", defaults=Resources(disk_mib=64))
    provider = LocalSandboxProvider(config, DriverContext())
    await provider.start()
    box = await provider.start_sandbox(SandboxSpec())
    await box.exec("echo kept > state")
    name = await box.snapshot("named")
    await box.snapshot()
    fork = await provider.start_sandbox(SandboxSpec(from_snapshot=name))
    await fork.exec("setsid sleep 4020 &")
    if sys.argv[2] == "half":
        await box.exec("head -c 50000000 /dev/urandom > large")
        asyncio.get_running_loop().call_later(0.02, lambda: print("ready", flush=True))
        while True:
            await box.snapshot()
    print("ready", flush=True)
    await fork.exec("sleep 4020")
asyncio.run(main())
"""


def layers() -> Layers:
    """The snapshots of this test."""
    return Layers(state_folder("local"))


def inhabitants(pids: list[int]) -> set[tuple[int, int]]:
    """All processes in the mount namespaces of these processes and of their parents: what is mounted there goes with
    them."""
    parents = [int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]) for pid in pids]
    spaces = {os.readlink(f"/proc/{pid}/ns/mnt") for pid in (*pids, *parents)} - {os.readlink("/proc/self/ns/mnt")}
    found: set[tuple[int, int]] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.readlink(entry / "ns/mnt") in spaces:
                    found.add((int(entry.name), start_time(int(entry.name))))
    return found


def alive(processes: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Those of the processes that still run."""
    return {(pid, started) for pid, started in processes if start_time(pid) == started}


def marked(name: str) -> list[str]:
    """The processes that were started for sandboxes whose id begins so."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and start_time(int(entry.name)):
            with contextlib.suppress(OSError):
                if f"{state.MARKER}={name}".encode() in (entry / "environ").read_bytes():
                    found.append(entry.name)
    return found


def mounts_here() -> str:
    """What is mounted where this process is, but for what was there before."""
    return "".join(line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "/place" in line)


def digest(folder: Path) -> str:
    """All that is in a folder, in short."""
    told = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        seen = path.lstat()
        told.update(f"{path} {seen.st_mode} {seen.st_uid} {seen.st_mtime_ns} {seen.st_ctime_ns}".encode())
        if stat.S_ISREG(seen.st_mode) and seen.st_size < 1 << 20:
            told.update(path.read_bytes())
    return told.hexdigest()


# -- what is in them


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


async def test_what_the_agent_had_stopped_stays_so_and_the_rest_goes_on(box: LocalSandbox) -> None:
    await box.exec(
        "sleep 4022 & sleep 4023 & sleep 0.3; kill -STOP $!; (while :; do echo >> beats; sleep 0.02; done) >/dev/null "
        "2>&1 &"
    )
    states = "ps -o s=,args= -C sleep | grep 402 | sort"
    assert (await box.exec(states)).stdout == b"S sleep 4022\nT sleep 4023\n"
    await box.snapshot()
    assert (await box.exec(states)).stdout == b"S sleep 4022\nT sleep 4023\n"
    before = len(await box.download("beats"))
    await asyncio.sleep(0.5)
    assert len(await box.download("beats")) > before


async def test_what_was_just_being_forked_goes_on_too(box: LocalSandbox) -> None:
    await box.exec("for i in 1 2 3; do (while :; do true | cat; done) >/dev/null 2>&1 & done")
    for _ in range(150):
        async with Transfer(box.channel) as standstill:
            await standstill.answer(standstill.ask(b"stand"))
    states = (await box.exec("sleep 0.2; ps -e -o s=,args=")).stdout.decode().splitlines()
    assert not [line for line in states if line.startswith("T")]


async def test_time_outs_wait_while_everything_stands_still(box: LocalSandbox) -> None:
    running = asyncio.ensure_future(
        box.exec("for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.15; done; echo done", timeout_s=4)
    )
    await asyncio.sleep(0.3)
    async with Transfer(box.channel) as standstill:
        await standstill.answer(standstill.ask(b"stand"))
        await asyncio.sleep(3.5)
        assert (await box.exec("echo on")).stdout == b"on\n", "what is asked for meanwhile runs"
    done = await running
    assert (done.exit_code, done.stdout) == (0, b"done\n")


@pytest.mark.slow
async def test_a_sandbox_that_is_forgotten_while_it_stands_still_goes_on(box: LocalSandbox) -> None:
    await box.exec(
        "(while :; do echo >> beats; sleep 0.02; done) >/dev/null 2>&1 & until [ -e beats ]; do sleep 0.01; done"
    )
    async with Transfer(box.channel) as standstill:
        await standstill.answer(standstill.ask(b"stand"))
        before = len(await box.download("beats"))
        await asyncio.sleep(0.3)
        assert len(await box.download("beats")) == before
        assert await eventually_more(box, before), "after ten seconds at most"


async def eventually_more(box: LocalSandbox, than: int) -> bool:
    """Whether the file `beats` grows."""
    for _ in range(60):
        await asyncio.sleep(0.25)
        if len(await box.download("beats")) > than:
            return True
    return False


# -- where there are no overlays


async def test_without_overlays_a_snapshot_is_sent_into_the_new_sandbox(request: pytest.FixtureRequest) -> None:
    patch = pytest.MonkeyPatch()
    patch.setattr(launcher.Launcher, "can_fork", lambda _: False)
    request.addfinalizer(patch.undo)
    async with provider_for("bubblewrap") as provider:
        assert issubclass(provider.sandbox_type, Snapshots)
        assert "fork" not in provider.capabilities
        async with await provider.start_sandbox(SandboxSpec()) as box:
            await box.exec(
                "echo 1 > a; mkdir -m 700 d; echo 2 > d/f; ln -s /etc/shadow l; mkdir -m 500 ro; truncate -s 2G sparse"
            )
            await box.upload({"/tmp/hidden/x": b"answer", "d/theirs": b"t"}, user=TESTS, mode=0o640)
            look = "ls -lAn . d ro /tmp; cat a d/f; readlink l; stat -c %a ~ . /tmp"
            before = (await box.exec(look, user=TESTS)).stdout
            name = await box.snapshot("archive")
        async with await provider.start_sandbox(SandboxSpec(from_snapshot=name, files={"new": b"n"})) as copy:
            await copy.exec("rm new; touch -d '2001-01-01' . ; true")
            assert (await copy.exec(look, user=TESTS)).stdout == before
            assert (await copy.exec("cat /tmp/hidden/x; echo 3 >> d/f; cat d/f")).stdout == b"2\n3\n"
            with pytest.raises(SandboxError, match="was started from a snapshot"):
                await copy.reset(copy.spec)
    patch.undo()
    async with provider_for("bubblewrap") as able, await able.start_sandbox(SandboxSpec(from_snapshot=name)) as copy:
        assert (await copy.exec("cat a")).stdout == b"1\n", "also where a fork could be had"


@as_root
async def test_where_the_mount_namespace_cannot_be_entered_there_is_one_user_and_no_fork(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(name: str, *arguments: object) -> None:
        raise OSError(1, f"{name}: Operation not permitted")

    monkeypatch.setattr(launcher, "system_call", refused)
    async with provider_for("bubblewrap") as provider, await provider.start_sandbox(SandboxSpec()) as box:
        assert issubclass(provider.sandbox_type, Snapshots)
        assert not {"users", "fork"} & provider.capabilities
        assert (await box.exec("echo on")).stdout == b"on\n"


@as_root
async def test_a_layer_that_cannot_be_stood_on_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with provider_for("bubblewrap") as provider, await provider.start_sandbox(SandboxSpec()) as box:
        await box.snapshot("layer")
    config = LocalSandboxConfig(isolation="bubblewrap", uid_base=1_800_000_000)
    async with LocalSandboxProvider(config, DriverContext()) as provider:
        with pytest.raises(ConfigError, match=r"made with uid_base: 1900000000, and here it is 1800000000"):
            await provider.start_sandbox(SandboxSpec(from_snapshot="layer"))
        assert await provider.list() == []
    monkeypatch.setattr(launcher.Launcher, "can_fork", lambda _: False)
    async with provider_for("bubblewrap") as provider:
        with pytest.raises(ConfigError, match="can mount overlays, which this one cannot"):
            await provider.start_sandbox(SandboxSpec(from_snapshot="layer"))
    assert layers().names() == ["layer"]


def test_a_normal_user_has_snapshots_too(as_user: Callable[[str], list[str]], tmp_path: Path) -> None:
    assert as_user("snapshots_as_user.py") == [
        "single",
        "['0', 'closed', '400', 'shut', '0', 'unreadable', 'S', 'T']",
        "again mine",
        "left:",
    ]
    assert os.listdir(tmp_path / "ale-local-1234") == []


async def test_without_isolation_there_are_none() -> None:
    async with provider_for("none") as provider:
        assert not issubclass(provider.sandbox_type, Snapshots)
        assert "fork" not in provider.capabilities
        async with await provider.start_sandbox(SandboxSpec(network="full")) as box:
            assert not isinstance(box, Snapshots)
        with pytest.raises(ConfigError, match="Without isolation there are no snapshots"):
            await provider.start_sandbox(SandboxSpec(network="full", from_snapshot="x"))


# -- nothing is left


@as_root
async def test_a_fork_that_ends_leaves_no_mount_process_or_folder(wrapped: LocalSandboxProvider) -> None:
    async with await wrapped.start_sandbox(SandboxSpec()) as box:
        name = await box.snapshot()
    fork = await wrapped.start_sandbox(SandboxSpec(from_snapshot=name))
    await fork.exec("setsid sleep 4024 &")
    inside = inhabitants([fork.record.pid])
    assert len(inside) == 3, "bubblewrap, the resident, and what it runs"
    assert "upperdir=" not in mounts_here(), "mounts are in the sandbox's namespaces alone"
    await fork.stop()
    assert not alive(inside)
    assert not sleepers(4024)
    held = await wrapped.start_sandbox(SandboxSpec(from_snapshot=name))
    inside = inhabitants([held.record.pid])
    os.kill(held.record.pid, signal.SIGKILL)
    await asyncio.wait_for(held.channel.closed.wait(), 10)
    await held.stop()
    assert not alive(inside)
    await wrapped.close()
    assert os.listdir(state_folder("local")) == []


@as_root
@pytest.mark.parametrize("moment", ["running", "half"])
async def test_an_owner_that_is_killed_leaves_what_has_a_name(own_state: Path, moment: str) -> None:
    command = [sys.executable, "-c", OWNER, str(own_state), moment]
    owner = await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    assert await asyncio.to_thread(owner.stdout.readline) == b"ready\n"
    assert await eventually(lambda: sleepers(4020))
    inside = inhabitants([record.pid for record in state.read_all(state_folder("local"))])
    owner.kill()
    owner.wait()
    assert await eventually(lambda: not sleepers(4020))
    assert await eventually(lambda: not alive(inside))
    async with provider_for("bubblewrap") as provider:
        assert await provider.snapshots() == ["named"]
        folder = state_folder("local") / "snapshots"
        assert sorted(name.partition("-")[0] for name in os.listdir(folder)) == ["layer", "named.json"]
        async with await provider.start_sandbox(SandboxSpec(from_snapshot="named")) as fork:
            assert await fork.download("state") == b"kept\n"
        await provider.remove_snapshot("named")
        assert [name[:5] for name in os.listdir(state_folder("local"))] == ["base-"]


@as_root
async def test_a_start_of_a_fork_that_is_cancelled_leaves_nothing(wrapped: LocalSandboxProvider) -> None:
    async with await wrapped.start_sandbox(SandboxSpec()) as box:
        name = await box.snapshot()
    for delay in (0.0, 0.001, 0.003, 0.006, 0.01, 0.02):
        spec = SandboxSpec(from_snapshot=name, id=f"cancelled-{os.getpid()}-{delay * 1000:.0f}")
        start = asyncio.create_task(wrapped.start_sandbox(spec))
        await asyncio.sleep(delay)
        start.cancel()
        (end,) = await asyncio.gather(start, return_exceptions=True)
        if isinstance(end, LocalSandbox):
            await end.stop()
    assert await wrapped.list() == []
    assert await eventually(lambda: not marked(f"cancelled-{os.getpid()}-"))
    await wrapped.remove_snapshot(name)
    assert await wrapped.snapshots() == []
    assert not (state_folder("local") / "snapshots").exists(), "nobody holds it"


async def test_a_cancelled_snapshot_leaves_nothing(box: LocalSandbox, wrapped: LocalSandboxProvider) -> None:
    await box.exec("head -c 10000000 /dev/urandom > large")
    for delay in (0.0, 0.002, 0.01, 0.03):
        taking = asyncio.create_task(box.snapshot("half"))
        await asyncio.sleep(delay)
        taking.cancel()
        (end,) = await asyncio.gather(taking, return_exceptions=True)
        if isinstance(end, str):
            await wrapped.remove_snapshot(end)
        assert not (state_folder("local") / "snapshots").exists()
    assert (await box.exec("echo on")).stdout == b"on\n"


async def test_a_sandbox_that_dies_under_its_snapshot_leaves_none(box: LocalSandbox) -> None:
    await box.exec("head -c 15000000 /dev/urandom > large")
    taking = asyncio.create_task(box.snapshot("dying"))
    await asyncio.sleep(0.02)
    os.kill(box.record.pid, signal.SIGKILL)
    (end,) = await asyncio.gather(taking, return_exceptions=True)
    assert isinstance(end, SandboxError) or end == "dying"
    assert layers().names() == ([] if isinstance(end, SandboxError) else ["dying"])
    layers().remove("dying")
    assert not layers().folder.exists()


# -- the folder of the snapshots


def published(store: Layers, name: str | None) -> tuple[str, Path]:
    """A snapshot with nothing in it, and its folder."""
    draft = store.draft()
    name = store.publish(draft, name, "layer", ("/tmp",), 0, 0)
    store.release(draft)
    found = store.read(name)
    assert found is not None
    return name, store.folder / found.folder


def test_what_is_in_use_stays_until_it_is_let_go() -> None:
    store = layers()
    name, first = published(store, "one")
    held = layers().hold(name)
    _, second = published(store, "one")
    assert (first.exists(), second.exists()) == (True, True), "somebody runs from the first"
    held.close()
    layers().collect()
    assert (first.exists(), second.exists()) == (False, True)
    held = store.hold("one")
    assert held.path == second
    store.remove("one")
    assert store.names() == []
    assert second.exists()
    held.close()
    store.collect()
    assert not store.folder.exists()


def test_what_dead_processes_left_is_reclaimed_and_nothing_else() -> None:
    store = layers()
    named, _ = published(store, "named")
    mine, _ = published(store, None)
    theirs, _ = published(store, None)
    path = store.folder / f"{theirs}.json"
    path.write_text(path.read_text().replace(f'"owner": "{os.getpid()}-', '"owner": "999999-'))
    (store.folder / "part-999999-1-abc/0").mkdir(parents=True)
    drafted = store.draft()
    layers().reclaim()
    assert store.names() == sorted([named, mine])
    assert drafted.path.exists()
    assert not (store.folder / "part-999999-1-abc").exists()
    assert len(list(store.folder.glob("layer-*"))) == 2
    store.release(drafted)
    store.close()
    assert store.names() == [named]


def test_a_folder_that_is_locked_by_its_remover_is_not_stood_on() -> None:
    store = layers()
    published(store, "one")
    held = store.hold("one")
    with (held.path / "lock").open() as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    held.close()
    store.remove("one")
    with pytest.raises(ConfigError, match="There is no snapshot 'one' of local sandboxes; the existing ones are: none"):
        store.hold("one")


@pytest.mark.parametrize("name", ["../x", "a/b", "", "x" * 65, "unnamed-1", ".hidden"])
async def test_bad_names_are_refused(box: LocalSandbox, wrapped: LocalSandboxProvider, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be named"):
        await box.snapshot(name)
    with pytest.raises(ConfigError, match="There is no snapshot"):
        await wrapped.start_sandbox(SandboxSpec(from_snapshot=name))
    await wrapped.remove_snapshot(name)
    assert await wrapped.snapshots() == []
