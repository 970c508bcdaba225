"""`ale sandbox`: what one process has started, another lists and removes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ale_command import ALE
from engines import answers

OWNER = """
import asyncio, sys
from ale.plugins import build_driver
from ale.run_config import PluginChoice
from ale.specs.driver import DriverContext
from ale.specs.sandbox import SandboxSpec
async def main():
    provider = build_driver("sandbox", PluginChoice(use=sys.argv[1]), DriverContext(labels={"run": "mine"}))
    async with provider:
        for name in sys.argv[2:]:
            await provider.start_sandbox(SandboxSpec(id=name, labels={"task": name[-1]}))
        print("ready", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""
VISITOR = """
import asyncio, sys
from ale.plugins import build_driver
from ale.run_config import PluginChoice
from ale.specs.driver import DriverContext
from ale.specs.sandbox import SandboxSpec
async def main():
    async with build_driver("sandbox", PluginChoice(use=sys.argv[1]), DriverContext()) as provider:
        async with await provider.start_sandbox(SandboxSpec(image=sys.argv[2])) as box:
            print((await box.exec("python3 -c 'import ssl, sqlite3, json; print(6 * 7)'")).output, end="")
asyncio.run(main())
"""
Ale = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(params=["local", *(pytest.param(e, marks=getattr(pytest.mark, e)) for e in ("docker", "podman"))])
def provider(request: pytest.FixtureRequest) -> str:
    if request.param != "local" and not answers(request.param):
        pytest.skip(f"{request.param} does not answer")
    return str(request.param)


@pytest.fixture
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """State folders of this test's own."""
    return {**os.environ, "TMPDIR": str(tmp_path_factory.mktemp("s"))}


@pytest.fixture
def ale(environment: dict[str, str], provider: str) -> Ale:
    def call(*arguments: str, of: str = provider) -> subprocess.CompletedProcess[str]:
        command = [ALE, "sandbox", *arguments, *(["--sandbox", of] if of else [])]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)

    return call


@pytest.fixture
def owner(provider: str, environment: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A process with two sandboxes, and their ids."""
    ids = [f"ale-cli-{os.getpid()}-{provider}-{letter}" for letter in "ab"]
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, provider, *ids], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process, ids
    process.kill()
    process.wait()


def test_what_one_process_started_another_lists_and_removes(
    owner: tuple[subprocess.Popen[str], list[str]], ale: Ale
) -> None:
    _, (first, second) = owner
    table = ale("ls").stdout.splitlines()
    assert table[0].split() == ["ID", "PROVIDER", "STATE", "AGE", "LABELS"]
    (line,) = [line for line in table if line.startswith(first)]
    assert "running" in line
    assert "run=mine task=a" in line
    listed = {item["id"]: item for item in json.loads(ale("ls", "--json").stdout)}
    assert listed[second]["alive"]
    assert listed[second]["labels"]["task"] == "b"
    assert ale("rm", first).stdout == f"{first}\n"
    assert first not in ale("ls").stdout
    done = ale("rm", first, second)
    assert done.returncode == 2
    assert done.stdout == f"{second}\n"
    assert done.stderr == f"error: There is no sandbox {first}; `ale sandbox ls` lists those that there are.\n"


def test_what_a_killed_owner_left_is_pruned(
    owner: tuple[subprocess.Popen[str], list[str]], ale: Ale, provider: str, tmp_path: Path
) -> None:
    process, ids = owner
    process.kill()
    process.wait()
    ale("prune")
    assert not set(ids) & {item["id"] for item in json.loads(ale("ls", "--json").stdout)}
    assert "Traceback" not in ale("prune").stderr


def test_a_provider_that_does_not_exist_is_a_sentence(ale: Ale) -> None:
    done = ale("ls", of="lokal")
    assert done.returncode == 2
    assert "there is no sandbox plugin 'lokal'. Did you mean 'local'?" in done.stderr


@pytest.mark.docker
def test_images_are_made_without_a_registry(ale: Ale, provider: str) -> None:
    name = f"ale-test-python-{os.getpid()}:1"
    done = ale("image", "build", "--python", "--name", name)
    if provider == "local":
        assert done.returncode == 2
        assert "has no images; use a provider with the capability 'images'" in done.stderr
        return
    assert done.stdout == f"{name}\n", done.stderr
    try:
        ran = subprocess.run(
            [sys.executable, "-c", VISITOR, provider, name], capture_output=True, text=True, check=False, timeout=120
        )
        assert ran.stdout == "42\n", ran.stderr
    finally:
        subprocess.run([provider, "rmi", "--force", name], capture_output=True, check=False)
