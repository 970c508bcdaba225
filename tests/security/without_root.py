"""Runs attacks in local sandboxes of a provider that is not root, one sandbox an attack; `test_without_root.py` starts
it.

In: the programs, as JSON `{name: text}`. Out: a JSON list a line, `[name, exit code, stdout, stderr, alive]`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import tempfile

from ale.specs.driver import DriverContext
from ale.specs.sandbox import SandboxSpec
from ale_local import LocalSandboxConfig, LocalSandboxProvider


async def main(programs: dict[str, str]) -> None:
    """Run them one after the other."""
    config = LocalSandboxConfig(isolation="bubblewrap")
    async with LocalSandboxProvider(config, DriverContext()) as provider:
        assert provider.wrap is not None
        assert provider.wrap.mode == "single"
        for name, program in programs.items():
            async with await provider.start_sandbox(SandboxSpec()) as box:
                done = await box.exec("exec python3 -", stdin=program.encode(), timeout_s=30)
                alive = (await box.exec("echo alive")).stdout == b"alive\n"
            output = [base64.b64encode(stream).decode() for stream in (done.stdout, done.stderr)]
            print(json.dumps([name, done.exit_code, *output, alive]), flush=True)


if __name__ == "__main__":
    tempfile.tempdir = sys.argv[1]
    asyncio.run(main(json.load(sys.stdin)))
