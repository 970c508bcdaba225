"""The relays in containers without a network, which hold the folder of the endpoint's socket and nothing else of the host's.

The image has a Python; socat and Node are this machine's, of whose programs the image is made.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from engines import answers, provider_of
from relaying import PROGRAMS, agent_in, relay_command, served

IMAGE = "ale-python:1"


@pytest.fixture(params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("docker", "podman")])
def engine(request: pytest.FixtureRequest) -> str:
    """The name of each engine, which has the image."""
    if not answers(request.param) or shutil.which(request.param) is None:
        pytest.skip(f"{request.param} does not answer")

    async def build() -> None:
        async with provider_of(request.param) as provider:
            if not await provider.engine.has_image(IMAGE):
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
        engine, "run", "--rm", "--network", "none", "--name", f"relay-{name}-{os.getpid()}",
        *(word for mount in mounts for word in ("--volume", mount)), IMAGE,
    ]  # fmt: skip
    async with served(tmp_path) as session:
        await agent_in(box, "/ale", name, session)
