"""Run by `test_resets.py` as a user without any privilege: the agent is the same user as the resident."""

from __future__ import annotations

import asyncio
import sys
import tempfile

from ale.errors import UncleanError
from ale.specs.driver import DriverContext
from ale.specs.sandbox import SandboxSpec
from ale.specs.sandbox_protocols import Resets
from ale_local import LocalSandboxConfig, LocalSandboxProvider

PRIVATE = (
    "mkdir -p a/b/c /tmp/d; touch a/b/c/d /tmp/d/x; ln -s / a/root; chmod 0 a/b/c a/b; chmod 400 a /tmp/d; "
    "chmod 0 . /tmp; ipcmk -M 100; (setsid sleep 99 &)"
)
LOOK = "stat -c '%A %U' . /tmp; ls -A . /tmp; wc -l < /proc/sysvipc/shm; ps ax | grep -c '[s]leep 99'"


async def main() -> None:
    """Reset one after what can be mended, then after each of what cannot."""
    tempfile.tempdir = sys.argv[1]
    async with LocalSandboxProvider(LocalSandboxConfig(isolation="bubblewrap"), DriverContext()) as provider:
        assert issubclass(provider.sandbox_type, Resets)
        async with await provider.start_sandbox(SandboxSpec()) as box:
            print((await box.exec(LOOK)).stdout.split())
            await box.exec(PRIVATE)
            await box.reset(SandboxSpec())
            print((await box.exec(LOOK)).stdout.split())
        for command in ("prlimit --pid 1 --nofile=100:100", "renice 19 1", "taskset -p 1 1"):
            async with await provider.start_sandbox(SandboxSpec()) as box:
                done = await box.exec(f"{command} >/dev/null")
                try:
                    await box.reset(SandboxSpec())
                    print(command.split()[0], done.exit_code, "as new")
                except UncleanError as error:
                    print(command.split()[0], done.exit_code, error.what)


asyncio.run(main())
