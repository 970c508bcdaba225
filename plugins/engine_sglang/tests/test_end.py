"""Nothing of a server outlives its owner."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import psutil
import pytest

from ale_engines.server.settings import ServerSettings

pytestmark = pytest.mark.timeout(1800)
OWNER = """
import asyncio, sys
from pathlib import Path
from ale.session.tokenizer import byte_tokenizer
from ale.specs.driver import DriverContext
from ale_engines.server.settings import ServerSettings
from ale_sglang.replica import SglangReplica

async def main():
    settings = ServerSettings.model_validate_json(sys.argv[1])
    replica = SglangReplica(settings, DriverContext(seed=1, run_dir=Path(sys.argv[3])))
    await replica.start()
    await replica.load_model(Path(sys.argv[2]), byte_tokenizer())
    print(replica.process.pid, *replica.launch.folders, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_nothing_is_left_of_a_server_whose_owner_is_killed(
    settings: ServerSettings, folders: dict[int, Path], tmp_path: Path
) -> None:
    before = shared_files("sglang_")
    owner = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        OWNER,
        settings.model_dump_json(),
        str(folders[0]),
        str(tmp_path),
        stdout=asyncio.subprocess.PIPE,
    )
    assert owner.stdout is not None
    pid, *left = (await owner.stdout.readline()).decode().split()
    server = psutil.Process(int(pid))
    processes = [*server.children(recursive=True), server]
    guard = server.parent()
    assert len(processes) >= 3
    assert guard is not None
    assert all(map(os.path.isdir, left))
    work = Path(left[0]).name
    owner.kill()
    await owner.wait()
    _, alive = await asyncio.to_thread(psutil.wait_procs, [*processes, guard], 120)
    assert not alive
    assert not any(map(os.path.exists, left))
    assert not shared_files("sglang_") - before
    assert not shared_files(work)


def shared_files(part: str) -> set[str]:
    """The files in shared memory whose names have this part."""
    return {path.name for path in Path("/dev/shm").iterdir() if part in path.name}
