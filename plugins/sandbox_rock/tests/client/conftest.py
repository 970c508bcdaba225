"""The service that the tests of one file share, and sandboxes of ROCK's own client in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from service_process import Service, StartSandbox, serving
from support.sandbox_providers import must_answer


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with local sandboxes."""
    must_answer("local")
    with serving(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture
async def start(service: Service) -> AsyncIterator[StartSandbox]:
    """Start sandboxes by ROCK's client, with settings of its own; they are deleted afterwards."""
    from rock.sdk.sandbox.client import Sandbox
    from rock.sdk.sandbox.config import SandboxConfig

    started: list[Sandbox] = []

    async def start_one(**settings: Any) -> Sandbox:
        small: dict[str, Any] = {"base_url": service.url, "memory": "256m", "cpus": 0.5, "disk": "64m"}
        box = Sandbox(SandboxConfig(**{**small, **settings}))
        started.append(box)
        await box.start()
        return box

    yield start_one
    for box in started:
        if box.sandbox_id:
            for action in ("stop", "delete"):
                service.post(f"/apis/envs/sandbox/v1/{action}", {"sandbox_id": box.sandbox_id})
