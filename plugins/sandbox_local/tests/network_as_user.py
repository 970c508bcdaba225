"""Run by `test_network.py` as a user without any privilege: a sandbox whose relay is the same user as its agent."""

from __future__ import annotations

import asyncio
import sys
import tempfile

from support.echo_service import echo

from ale.specs.driver import DriverContext
from ale.specs.sandbox import SandboxSpec
from ale_local import LocalSandboxConfig, LocalSandboxProvider


async def main() -> None:
    """Reach what is allowed, also after killing all that can be killed; fail to reach what is not."""
    tempfile.tempdir = sys.argv[1]
    async with (
        echo() as port,
        LocalSandboxProvider(LocalSandboxConfig(isolation="bubblewrap"), DriverContext()) as provider,
    ):
        assert "users" not in provider.capabilities
        spec = SandboxSpec(network="allow", allow=(f"127.0.0.1:{port}",))
        async with await provider.start_sandbox(spec) as sandbox:
            reach = f"exec 3<>/dev/tcp/127.0.0.1/{port}; echo hi >&3; head -n 1 <&3"
            print((await sandbox.exec(reach)).output, end="")
            await sandbox.exec("kill -9 -1")
            print((await sandbox.exec(reach)).output, end="")
            for name in ("KILL", "INT", "TERM"):
                print((await sandbox.exec(f"kill -{name} -1; {reach}")).output, end="")
            other = await sandbox.exec("exec 3<>/dev/tcp/10.1.2.3/80")
            print("refused" if "Connection refused" in other.output else other.output)
            print((await sandbox.exec("cat /proc/1/status /proc/self/status | grep CapEff")).output, end="")


asyncio.run(main())
