"""Run by `test_snapshots_without_overlays.py` as a user without any privilege: snapshots
without overlays, which are sent to a new sandbox."""

from __future__ import annotations

import asyncio
import sys
import tempfile

from ale.specs.driver import DriverContext
from ale.specs.sandbox import Resources, SandboxSpec
from ale.specs.sandbox_protocols import Snapshots
from ale_local import LocalSandboxConfig, LocalSandboxProvider

MAKE = """
echo kept > a; mkdir -p closed/inner shut; echo secret > closed/inner/f; echo x > unreadable; chmod 000 unreadable
chmod 000 closed/inner closed; chmod 400 shut; ln -s /usr/bin/env out; echo h > ~/.rc; echo t > /tmp/t
truncate -s 3G sparse
sleep 4021 & sleep 4021 & until [ $(ps -o s= -C sleep | grep -c S) -eq 2 ]; do :; done; kill -STOP $!
"""
LOOK = """
stat -c '%a %n' a closed shut unreadable sparse /tmp; chmod 700 closed shut; chmod 700 closed/inner
chmod 600 unreadable
cat a closed/inner/f unreadable ~/.rc /tmp/t; readlink out; [ $(stat -c %b sparse) -lt 100 ] && echo sparse; ls
"""
STATES = """
stat -c '%a %n' closed shut unreadable
while ps -o s= -C sleep | grep -q '[RD]'; do :; done  # one that was just let go on has not fallen asleep yet
ps -o s= -C sleep | sort
"""


async def main() -> None:
    """Make one, look at it in another sandbox, print what there is."""
    tempfile.tempdir = sys.argv[1]
    limits = Resources(disk_mib=16)
    async with LocalSandboxProvider(LocalSandboxConfig(isolation="bubblewrap"), DriverContext()) as provider:
        assert provider.wrap is not None
        assert issubclass(provider.sandbox_type, Snapshots)
        print(provider.wrap.mode, *(provider.capabilities & {"fork"}))
        async with await provider.start_sandbox(SandboxSpec(resources=limits)) as box:
            await box.exec(MAKE)
            before = (await box.exec(STATES)).output
            name = await box.snapshot("mine")
            unnamed = await box.snapshot()
            assert (await box.exec(STATES)).output == before
            print(before.split())
            own = (await box.exec(LOOK)).output
        spec = SandboxSpec(resources=limits, from_snapshot=name, files={"new": b"new"}, workdir="/elsewhere")
        async with await provider.start_sandbox(spec) as fork:
            assert (await fork.exec("cat new; ls /workspace/new")).stdout == b"new"
            assert (await fork.exec(LOOK, cwd="/workspace")).output == own, (
                await fork.exec(LOOK, cwd="/workspace")
            ).output
            again = await fork.snapshot("again")
        spec = SandboxSpec(resources=Resources(disk_mib=16), from_snapshot=again)
        async with await provider.start_sandbox(spec) as grandchild:
            assert (await grandchild.exec("cat /elsewhere/new a")).stdout == b"newkept\n"
        assert set(await provider.snapshots()) == {name, unnamed, again}
    other = LocalSandboxProvider(LocalSandboxConfig(), DriverContext())
    print(*await other.snapshots())
    for name in await other.snapshots():
        await other.remove_snapshot(name)
    print("left:", *await other.snapshots())


asyncio.run(main())
