"""If a process that owns sandboxes is killed at any moment, the next start removes everything that it left."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from support.sandbox_providers import answers, provider_of

MOMENTS = 6
OWNER = """
import asyncio, sys
from support.sandbox_providers import provider_of
from ale.specs.sandbox import Resources, SandboxSpec
from ale.specs.sandbox_protocols import Snapshots

name, tag = sys.argv[1:]

async def live(provider, i):
    # Whatever an owner may be in the middle of: starting, running, keeping a state, letting out, stopping.
    spec = SandboxSpec(id=f"{tag}-{i}", labels={"tag": tag}, resources=Resources(memory_mib=128, pids=64))
    if i == 1:
        spec = spec.model_copy(update={"network": "allow", "allow": ("10.9.8.7:80",)})
    while True:
        async with await provider.start_sandbox(spec) as box:
            await box.exec("(setsid sleep 4777 &); sleep 4777 & echo x > file")
            if isinstance(box, Snapshots) and i == 2:
                kept = await box.snapshot()
                async with await provider.start_sandbox(SandboxSpec(id=f"{tag}-fork", from_snapshot=kept)) as fork:
                    await fork.exec("true")
            print("turn", flush=True)

async def main():
    async with provider_of(name) as provider:
        await asyncio.gather(*(live(provider, i) for i in range(3)))

asyncio.run(main())
"""


def traces(tag: str) -> list[str]:
    """Everything on this machine that carries an owner's tag or its folders' names."""
    # Not rglob: others' groups go while it looks.
    found = [
        f"{folder}/{name}"
        for folder, inner, _ in os.walk("/sys/fs/cgroup")
        for name in inner
        if name.startswith(f"{tag}-")
    ]
    found += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if tag in line]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                said = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if f"{tag}-".encode() in said:
                found.append(f"{entry.name}: {said[:200]!r}")
    return found


@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("local", marks=pytest.mark.bwrap),
        pytest.param("docker", marks=pytest.mark.docker),
        pytest.param("podman", marks=pytest.mark.podman),
    ],
)
async def test_nothing_is_left_of_an_owner_that_is_killed_at_a_random_moment(name: str, tmp_path: Path) -> None:
    if name != "local" and not await asyncio.to_thread(answers, name):
        pytest.skip(f"{name} does not answer")
    folder = Path(tempfile.gettempdir()) / f"ale-{name}-{os.getuid()}"
    chance = random.Random(name)
    env = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    for moment in range(MOMENTS):
        tag = f"ale-kill-{os.getpid()}-{moment}"
        program = [sys.executable, "-c", OWNER, name, tag]
        with (tmp_path / "said").open("wb") as said:
            owner = await asyncio.to_thread(subprocess.Popen, program, stdout=said, stderr=said, env=env)
        until = time.monotonic() + 60
        # Half of the moments fall into the start, half into what comes after it.
        while moment % 2 and b"turn" not in (tmp_path / "said").read_bytes():
            assert time.monotonic() < until, (tmp_path / "said").read_text()
            await asyncio.sleep(0.02)
        await asyncio.sleep(chance.uniform(0.3, 1.5))
        assert owner.poll() is None, (tmp_path / "said").read_text()
        owner.kill()
        owner.wait()
        async with provider_of(name) as fresh:
            for _ in range(300):
                left = [info.id for info in await fresh.list() if info.id.startswith(tag)]
                if not left and not traces(tag):
                    break
                await asyncio.sleep(0.1)
                await fresh.prune()
            assert left == []
            assert traces(tag) == []
            bases = [path.name for path in folder.glob(f"base-{owner.pid}-*")]
            assert bases == [], "the next start removes the folder of an owner that is gone"
