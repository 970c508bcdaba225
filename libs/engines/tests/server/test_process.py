"""A server's process and everything below it end with their owner, whatever happens to either."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from ale.errors import EngineError
from ale_engines.server.process import ServerProcess
from ale_testing.processes import running

FAMILY = """
import os, signal, subprocess, sys, time
stubborn = "stubborn" in sys.argv
if stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(100)"
child = [sys.executable, "-c", deaf]
strays = [subprocess.Popen(child, start_new_session=new, stdout=subprocess.PIPE) for new in (False, True)]
for stray in strays:
    stray.stdout.readline()
if os.fork() == 0:  # an orphan: its parent ends at once
    if os.fork() == 0:
        time.sleep(100)
    os._exit(0)
os.wait()
print("ready", flush=True)
time.sleep(100)
"""
OWNER = """
import asyncio, sys
from pathlib import Path
from ale_engines.server.process import ServerProcess
async def main():
    folder = Path(sys.argv[1])
    remove = [folder / "shm", folder / "*mine-*"]
    process = ServerProcess([sys.executable, "-c", sys.argv[2], "stubborn"], {}, folder / "log", "it", remove)
    await process.start()
    await asyncio.sleep(100)
asyncio.run(main())
"""


def server(folder: Path, *argv: str, grace_s: float = 0.5) -> ServerProcess:
    """A server that is a Python program."""
    return ServerProcess(
        [sys.executable, *argv], dict(os.environ), folder / "log", "The server", [folder / "shm"], grace_s=grace_s
    )


async def until(true: Callable[[], bool], limit_s: float = 30.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end, "it did not come true"
        await asyncio.sleep(0.02)


def family(folder: Path) -> list[psutil.Process]:
    """The processes of this test, by the folder in their environment or command line, and what they started."""
    mark = str(folder)
    found = []
    for process in psutil.process_iter():
        try:
            if mark in " ".join(process.cmdline()) and process.pid != os.getpid():
                found += [process, *process.children(recursive=True)]
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("kind", ["", "stubborn"])
async def test_close_ends_all_its_processes_and_removes_its_folders(tmp_path: Path, kind: str) -> None:
    (tmp_path / "shm").mkdir()
    process = server(tmp_path, "-c", FAMILY, kind)
    async with process:
        await until(lambda: "ready" in process.log_tail())
        assert process.running
        started = family(tmp_path)
        assert len(started) >= 6, "the guard twice, the server, two children, an orphan"
    assert not process.running
    assert not running({process.pid for process in started})
    assert not (tmp_path / "shm").exists()
    assert process.ended == ("was ended by signal 9" if kind else "was ended by signal 15")
    await process.close()


async def test_a_server_that_ends_by_itself_is_noticed_and_its_children_end(tmp_path: Path) -> None:
    process = server(tmp_path, "-c", "import subprocess; subprocess.Popen(['sleep', '100']); print('bye'); exit(3)")
    async with process:
        await asyncio.wait_for(process.wait_ended(), 20)
        assert (process.running, process.ended, process.log_tail()) == (False, "ended with exit status 3", "bye")
        await until(lambda: not family(tmp_path))


@pytest.mark.parametrize("children_first", [False, True])
async def test_nothing_is_left_when_the_owner_is_killed(tmp_path: Path, children_first: bool) -> None:
    """A worker of Ray that is killed first kills its children."""
    (tmp_path / "shm").mkdir()
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", OWNER, str(tmp_path), FAMILY)
    log = tmp_path / "log"
    await until(lambda: log.exists() and "ready" in log.read_text())
    started = family(tmp_path)
    for name in ("sem.mine-1", "mine-2", "others-mine"):
        (tmp_path / name).touch()
    for child in psutil.Process(owner.pid).children() if children_first else ():
        child.kill()
    owner.kill()
    await owner.wait()
    await until(lambda: not running({process.pid for process in started}))
    await until(lambda: sorted(path.name for path in tmp_path.iterdir()) == ["log", "others-mine"])


async def test_the_server_dies_with_its_guard(tmp_path: Path) -> None:
    async with server(tmp_path, "-c", "import time; time.sleep(100)") as process:
        assert process.pid is not None
        pid = process.pid
        os.kill(psutil.Process(pid).ppid(), signal.SIGKILL)
        await asyncio.wait_for(process.wait_ended(), 20)
        assert process.ended == "was killed"
        await until(lambda: not running({pid}))


async def test_a_program_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    process = ServerProcess(["/nowhere/python"], {}, tmp_path / "log", "vLLM")
    with pytest.raises(EngineError, match=r"vLLM cannot be started: .*No such file.*'/nowhere/python'"):
        await process.start()
    await process.close()
