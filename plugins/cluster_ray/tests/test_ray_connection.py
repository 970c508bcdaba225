"""What a run's Ray would leave in the process and in the temporary folder is put right."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from ray._private.utils import check_version_info
from ray.exceptions import RayError

from ale.errors import ConfigError
from ale_ray import temporary_folder as temporary
from ale_ray.actor_calls import _as_lost, take_interrupts
from ale_ray.ray_connection import Connection, restore_sigterm
from ale_ray.temporary_folder import TemporaryFolder


def test_sigterm_goes_to_pythons_handler_again() -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        ctypes.CDLL(None).signal(
            int(signal.SIGTERM), ctypes.c_void_p(1)
        )  # SIG_IGN, behind Python's back as Ray does it
        os.kill(os.getpid(), signal.SIGTERM)
        assert received == []
        restore_sigterm()
        os.kill(os.getpid(), signal.SIGTERM)
        assert received == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_programs_can_be_interrupted_although_ray_blocks_the_signal() -> None:
    def start() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # in the background of a shell it is ignored
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        take_interrupts()

    sleep = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    with subprocess.Popen(sleep, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=start) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert os.getpgid(process.pid) == process.pid
        process.send_signal(signal.SIGINT)
        assert process.wait(30) != 0


async def test_rays_client_is_refused() -> None:
    connection = Connection("ray://head:10001", "run")
    with pytest.raises(ConfigError, match=r"^cluster\.address: Ray's client \(ray://head:10001\) is not supported"):
        await connection.open([])
    await connection.close()


@pytest.mark.parametrize("listening", [False, True])
async def test_an_address_where_no_ray_answers_is_refused(listening: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ale_ray.ray_connection.ANSWER_S", 2.0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        if listening:
            taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        connection = Connection(address, "run")
        with pytest.raises(
            ConfigError, match=rf"^cluster\.address: .* no head of Ray answers at {address}\. Start one"
        ):
            await connection.open([])
        await connection.close()


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        (("2.40.0", "3.11.9"), r"again with ray==2\.60\.0, or start .* cluster: `pip install ray==2\.40\.0`\.$"),
        (("2.60.0", "3.12.1"), r"again with Python 3\.11\.9, or start .* cluster: Python 3\.12\.1\.$"),
        (("2.40.0", "3.12.1"), r"with ray==2\.60\.0 and Python 3\.11\.9, .*ray==2\.40\.0` and Python 3\.12\.1\.$"),
    ],
)
async def test_a_cluster_of_another_release_is_refused_with_both_releases(
    cluster: tuple[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_: object) -> None:
        metadata = dict(zip(("ray_version", "python_version"), cluster, strict=True))
        check_version_info(metadata, "node 10.0.0.1")

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("ray._private.utils.compute_version_info", lambda: ("2.60.0", "3.11.9"))
    connection = Connection("auto", "run")
    with pytest.raises(ConfigError, match=rf"^cluster\.address: The cluster runs Ray {cluster[0]} with .*{words}"):
        await connection.open([])
    await connection.close()


def test_a_module_that_a_node_lacks_is_named_with_the_node() -> None:
    error = RayError(
        "The actor died in __init__() (pid=1, ip=10.0.0.7)\n  ModuleNotFoundError: No module named 'ale_ray'"
    )
    lost = _as_lost("engine 0", error)
    assert "on the node 10.0.0.7: No module named 'ale_ray' there" in str(lost)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(temporary, "ROOT", tmp_path)
    return tmp_path


def test_a_folder_is_removed_with_what_is_still_written_there(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = TemporaryFolder()
    held = Path(folder.path) / "session" / "logs"
    held.mkdir(parents=True)
    tries: list[str] = []
    remove = temporary.shutil.rmtree

    def remove_late(path: str, ignore_errors: bool) -> None:
        tries.append(path)
        if len(tries) > 2:
            remove(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(temporary.shutil, "rmtree", remove_late)
    folder.remove()
    assert len(tries) == 3
    assert list(root.iterdir()) == []
    folder.remove()


def test_the_folder_of_a_run_that_was_killed_is_removed_by_the_next_one(root: Path) -> None:
    alive, killed = TemporaryFolder(), TemporaryFolder()
    foreign = root / f"{temporary.PREFIX}foreign"
    foreign.mkdir()
    os.close(killed._lock)  # as the system does when a process ends
    mine = TemporaryFolder()
    assert sorted(map(str, root.iterdir())) == sorted([alive.path, mine.path, str(foreign)])
    alive.remove()
    mine.remove()
