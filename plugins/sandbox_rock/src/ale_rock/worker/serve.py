"""Serves a worker: its provider, the server at its port, and the future that is done when the admin refuses it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ale.registry.drivers import build_driver
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale_rock.http.server import serving
from ale_rock.worker.settings import WorkerSettings


def build_provider(name: str, own: dict[str, Any]) -> Any:
    """Build a worker's sandbox provider with settings of its own. Raises `ConfigError`."""
    return build_driver("sandbox", PluginChoice(use=name, settings=own), DriverContext(run_id="rock-worker"))


@asynccontextmanager
async def offering(
    provider: Any, settings: WorkerSettings, listener: socket.socket
) -> AsyncIterator[asyncio.Future[str]]:
    """Serve a worker while the context lasts. Yields a future that is done, with a sentence, if the admin refuses
    it."""
    from ale_rock.worker.app import make_app

    app = make_app(provider, settings)
    refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    app.state.service.on_refused = refused.set_result
    async with serving(app, listener):
        try:
            yield refused
        finally:
            app.state.service.refusals.close()  # otherwise the server would wait for their followers
