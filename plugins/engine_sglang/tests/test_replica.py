"""What one server of SGLang is asked, and in which order; the server is in the test."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from ale.errors import EngineError
from ale.specs.driver import DriverContext
from ale_engines.server.launch import ServerSetup
from ale_engines.server.settings import ServerSettings
from ale_sglang.replica import SglangReplica
from ale_sglang.server_arguments import RESERVE


@asynccontextmanager
async def replica_of(app: web.Application) -> AsyncIterator[SglangReplica]:
    """A replica at the URL of a server with these routes."""
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with SglangReplica(ServerSettings.model_validate({"url": url}), DriverContext()) as replica:
            await replica.client.start()
            yield replica
    finally:
        await runner.cleanup()


async def test_an_update_that_ends_while_the_server_is_being_paused_does_not_let_it_go_on() -> None:
    paths: list[str] = []
    loading, loaded = asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        paths.append(request.path)
        if request.path == "/update_weights_from_disk":
            loading.set()
            await loaded.wait()
        elif paths.count("/pause_generation") == 2:  # the pause is slower than the end of the update
            loaded.set()
            await asyncio.sleep(0.2)
        return web.json_response({})

    app = web.Application()
    app.router.add_post("/{path}", answer)
    async with replica_of(app) as replica:
        update = asyncio.create_task(replica.send_folder(Path("/weights"), 1))
        await loading.wait()
        await replica.pause()
        await update
        assert paths == ["/pause_generation", "/update_weights_from_disk", "/pause_generation"]
        await replica.resume()
        assert paths[3:] == ["/continue_generation"]


async def test_the_server_says_its_dtype_and_its_context_if_it_was_started_with_the_launcher() -> None:
    texts = [
        f'{{"dtype":"auto","ale_dtype":"bfloat16","ale_context":{100 + RESERVE},"startup_time":1}}',
        '{"dtype":"auto","startup_time":1}',
    ]

    async def info(request: web.Request) -> web.Response:
        return web.Response(text=texts.pop(0))

    app = web.Application()
    app.router.add_get("/server_info", info)
    async with replica_of(app) as replica:
        assert await replica.ask_setup() == ServerSetup("bfloat16", 100)
        with pytest.raises(EngineError, match="was not started with ALE's launcher"):
            await replica.ask_setup()


@pytest.mark.parametrize(("device", "frees"), [("cpu", True), ("cuda", False)])
async def test_on_a_gpu_its_sleep_frees_no_memory_and_on_a_cpu_nobody_waits_for_any(device: str, frees: bool) -> None:
    settings = ServerSettings.model_validate({"python": sys.executable, "device": device})
    async with SglangReplica(settings, DriverContext()) as replica:
        assert replica.frees_memory == frees
