"""A Docker Engine that does not answer the removal of a container: requests pass to the real one, but answers to
removals are lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from support.sandbox_providers import must_answer

from ale.specs.driver import DriverContext
from ale.specs.sandbox import SandboxSpec
from ale_docker import DockerConfig, DockerProvider, engine

pytestmark = pytest.mark.docker


@pytest.fixture(autouse=True)
def _docker() -> None:
    must_answer("docker")


@asynccontextmanager
async def losing_answers(path: Path, count: int) -> AsyncIterator[list[str]]:
    """A socket before Docker's that loses the first `count` answers to removals; yields the removals."""
    removals: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_unix_connection("/var/run/docker.sock")
        lost = asyncio.Event()

        async def ask() -> None:
            while data := await reader.read(1 << 16):
                if data.startswith(b"DELETE "):
                    removals.append(data.split(b" ", 2)[1].decode())
                    if len(removals) <= count:
                        lost.set()
                requests.write(data)

        async def answer() -> None:
            while data := await answers.read(1 << 16):
                if not lost.is_set():
                    writer.write(data)

        with suppress(ConnectionError):
            await asyncio.wait(
                [asyncio.ensure_future(ask()), asyncio.ensure_future(answer())], return_when="FIRST_COMPLETED"
            )
        for each in (writer, requests):
            each.close()

    server = await asyncio.start_unix_server(serve, path)
    try:
        yield removals
    finally:
        server.close()


@pytest.mark.parametrize("count", [1, 1000])
async def test_a_removal_that_is_not_answered_holds_nothing_up(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine, "TRY_S", 1.0)
    monkeypatch.setattr(engine, "REMOVE_S", 60.0 if count == 1 else 3.0)
    socket = tmp_path / "docker.sock"
    caplog.set_level(logging.WARNING, "ale.sandbox")
    async with (
        losing_answers(socket, count) as removals,
        asyncio.timeout(240),
        DockerProvider(DockerConfig(url=f"unix://{socket}"), DriverContext()) as provider,
    ):
        box = await provider.start_sandbox(SandboxSpec())
        assert (await box.exec("echo there")).stdout == b"there\n"
    assert len(removals) > 1, "it was asked again"
    warned = [record.getMessage() for record in caplog.records]
    if count == 1:
        assert warned == []
    else:
        assert len(warned) == 1
        assert f"the sandbox {box.id} was not removed" in warned[0]
        assert "it does not answer" in warned[0]
    async with DockerProvider(DockerConfig(), DriverContext()) as provider:
        assert box.id not in {found.name for found in await provider.engine.containers()}
