"""These tests run the relays in containers without a network, which see only the folder of the endpoint's socket of the
host.

The image has Python, socat and Node, because it is made of this machine's programs.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from relay_fixtures import PROGRAMS, agent_in, relay_command, served
from support.sandbox_providers import answers, provider_of

IMAGE = "ale-python:1"


@pytest.fixture(params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("docker", "podman")])
def engine(request: pytest.FixtureRequest) -> str:
    """The name of each engine, which has the image."""
    if not answers(request.param) or shutil.which(request.param) is None:
        pytest.skip(f"{request.param} does not answer")

    async def build() -> None:
        async with provider_of(request.param) as provider:
            if not await provider.engine.find_image(IMAGE):
                await provider.build_image(python=True)

    asyncio.run(build())
    return str(request.param)


@pytest.mark.parametrize("name", list(PROGRAMS))
async def test_an_agent_in_a_container_without_a_network_reaches_the_endpoint(
    engine: str, name: str, tmp_path: Path
) -> None:
    relay_command(name, str(tmp_path))
    mounts = [f"{tmp_path}:/ale", *(f"{path}:{path}:ro" for path in ("/usr", "/lib", "/lib64") if name != "python")]
    box = [
        engine,
        "run",
        "--rm",
        "--network",
        "none",
        "--name",
        f"relay-{name}-{os.getpid()}",
        *(word for mount in mounts for word in ("--volume", mount)),
        IMAGE,
    ]
    async with served(tmp_path) as session:
        await agent_in(box, "/ale", name, session)
