"""Run by `test_isolation.py` as a user without any privilege: a sandbox with one user inside."""

from __future__ import annotations

import asyncio
import sys
import tempfile

from ale.specs.driver import DriverContext
from ale.specs.sandbox import Resources, SandboxSpec
from ale_local import LocalSandboxConfig, LocalSandboxProvider


async def main() -> None:
    """Start one, look at it, stop it."""
    tempfile.tempdir = sys.argv[1]
    async with LocalSandboxProvider(LocalSandboxConfig(isolation="bubblewrap"), DriverContext()) as provider:
        assert provider.wrap is not None
        assert "users" not in provider.capabilities
        async with await provider.start_sandbox(SandboxSpec(resources=Resources(disk_mib=8))) as sandbox:
            print(provider.wrap.mode, (await sandbox.exec("id -u", user="tests")).output.strip())
            late = await sandbox.exec("(setsid sleep 99 &) ; sleep 99", timeout_s=0.3)
            await sandbox.upload({"a": b"x"})
            async with await sandbox.open_shell() as shell:
                await shell.run("x=1; exit 3")
                assert (await shell.run("cat /proc/$PPID/mem; echo $x")).stdout == b"1\n"
            assert (await sandbox.exec("kill -9 1; kill -STOP 1; cat /proc/1/environ")).exit_code != 0
            left = (await sandbox.exec("ps ax | grep -c '[s]leep 99'")).output.strip()
            print(late.exit_code, left)


asyncio.run(main())
