"""An image that another process removes at the same moment, as Docker tells of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import aiodocker
import pytest

from ale.errors import SandboxError
from ale_docker.engine import DockerEngine


class Images:
    """Docker's images: one, which it refuses to delete with a status; `there` says whether it is there then."""

    def __init__(self, status: int, *, there: bool) -> None:
        self.status, self.there = status, there

    async def delete(self, name: str) -> None:
        raise aiodocker.DockerError(self.status, {"message": "no"})

    async def inspect(self, name: str) -> dict[str, Any]:
        if not self.there:
            raise aiodocker.DockerError(404, {"message": "no such image"})
        return {"Id": "sha256:1"}


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> DockerEngine:
    made = DockerEngine(None, None)
    made._client = SimpleNamespace(images=request.param)  # type: ignore[assignment]
    return made


@pytest.mark.parametrize(
    ("engine", "gone"),
    [
        (Images(404, there=False), True),
        (Images(500, there=False), True),  # another process was removing it
        (Images(409, there=True), False),  # a container runs from it
    ],
    indirect=["engine"],
)
async def test_an_image_is_gone_if_it_is_not_there_whatever_docker_answers(engine: DockerEngine, gone: bool) -> None:
    assert await engine.remove_image("x") is gone


@pytest.mark.parametrize("engine", [Images(500, there=True)], indirect=True)
async def test_an_image_that_stays_without_a_reason_is_an_error(engine: DockerEngine) -> None:
    with pytest.raises(SandboxError, match="could not remove the image x"):
        await engine.remove_image("x")
