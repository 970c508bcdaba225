"""Asks the workers of a ROCK service to build the images of tasks, for the provider `rock`."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from weakref import WeakValueDictionary

from ale.errors import ConfigError
from ale.task import ImageBuild, as_bytes
from ale_rock.client.service_client import ALE, ANSWER_S, ServiceClient
from ale_sandbox.containers.default_image import BASE, PYTHON, TAG
from ale_sandbox.containers.image_builds import digest_of

SLACK_S = 2 * ANSWER_S


class ServiceBuilds:
    """The builds of one provider."""

    def __init__(self, client: ServiceClient) -> None:
        self._client = client
        self._built: dict[str, str] = {}
        """Names of images by the digest of what was built."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def image_from(self, build: ImageBuild) -> str:
        digest = digest_of(build)
        async with self._locks.setdefault(digest, asyncio.Lock()):
            image = self._built.get(digest)
            if image is not None and await self._is_there(image):
                return image
            image = self._built[digest] = await self._build(build)
        return image

    async def small_image(self, name: str | None, python: bool) -> str:
        """The small image that each worker makes of its machine's programs. Raises
        `ConfigError` for a name, since the workers name images by what is in them."""
        if name is not None:
            raise ConfigError(f"The workers of a ROCK service name their images themselves; leave out {name!r}.")
        return await self.image_from(ImageBuild(dockerfile=f"FROM {PYTHON if python else BASE}:{TAG}\n"))

    async def _is_there(self, image: str) -> bool:
        found = await self._client.json("GET", f"{ALE}/builds", query={"image": image})
        return bool(found["workers"])

    async def _build(self, build: ImageBuild) -> str:
        files = {path: b64encode(as_bytes(content)).decode() for path, content in build.files.items()}
        asked = {"dockerfile": build.dockerfile, "files": files, "timeout_s": build.timeout_s}
        answer = await self._client.json("POST", f"{ALE}/builds", asked, 2 * build.timeout_s + SLACK_S)
        image: str = answer["image"]
        return image
