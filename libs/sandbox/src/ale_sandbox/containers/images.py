"""Makes sure that an image exists before a sandbox starts from it: pulls it or builds it if it is missing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ale.errors import ConfigError, SandboxError
from ale_sandbox.containers.default_image import BASE, PYTHON, TAG, image_tar
from ale_sandbox.containers.engine import Engine

log = logging.getLogger("ale.sandbox.container")
T = TypeVar("T")

DEFAULT_IMAGE = f"{BASE}:{TAG}"


class Images:
    """The images that a provider has looked for; each is looked for once."""

    def __init__(self, engine: Engine, pull: bool) -> None:
        self.engine, self.pull = engine, pull
        self._there: set[str] = set()
        self._env: dict[str, dict[str, str]] = {}
        self._getting = asyncio.Lock()

    async def provide(self, image: str, *, snapshot: bool = False) -> None:
        """Make sure that an image exists. Raises `ConfigError`, which says what to do, if it cannot be had."""
        if image in self._there:
            return
        async with self._getting:  # only one of several starts makes or pulls it
            if image not in self._there:
                await self._get(image, snapshot)
                self._there.add(image)

    async def start_from(self, image: str, start: Callable[[], Awaitable[T]], *, snapshot: bool = False) -> T:
        """Provide an image and start a container from it; once more if somebody has removed the image since it was
        looked for. Raises as `provide` and `start`."""
        await self.provide(image, snapshot=snapshot)
        try:
            return await start()
        except SandboxError:
            if await self.engine.find_image(image):
                raise
        self.forget(image)
        await self.provide(image, snapshot=snapshot)
        return await start()

    async def env(self, image: str) -> dict[str, str]:
        """Return the environment that an image gives to its programs."""
        if image not in self._env:
            self._env[image] = await self.engine.image_env(image)
        return self._env[image]

    def forget(self, image: str) -> None:
        """Forget an image that has been removed."""
        self._there.discard(image)
        self._env.pop(image, None)

    async def build(self, name: str | None, python: bool) -> str:
        """Make an image of this machine's programs. Without a name it is called `ale-base:1`, or `ale-python:1` if it
        has a Python. The image that had the name before is removed, unless a container uses it."""
        name = name or f"{PYTHON if python else BASE}:{TAG}"
        replaced = await self.engine.find_image(name)
        await self.engine.import_image(name, await asyncio.to_thread(image_tar, python))
        if replaced is not None and replaced != await self.engine.find_image(name):
            await self.engine.remove_image(replaced)
        return name

    async def _get(self, image: str, snapshot: bool) -> None:
        if await self.engine.find_image(image):
            return
        if image == DEFAULT_IMAGE:
            log.info("Making the image %s from this machine's programs.", image)
            await self.build(image, python=False)
            return
        if snapshot:
            raise ConfigError(
                f"There is no snapshot {image} in {self.engine.name}; it was removed, or made on another machine or by "
                "another engine."
            )
        if self.pull:
            try:
                await self.engine.pull(image)
                if await self.engine.find_image(image):
                    return
                raise SandboxError("the pull ended without an error, and the image is still missing.")
            except SandboxError as error:
                raise ConfigError(
                    f"{self.engine.name} has no image {image}, and it cannot be pulled: {str(error).rstrip('. ')}. "
                    f"{self._mend(image)}"
                ) from error
        raise ConfigError(f"{self.engine.name} has no image {image}. {self._mend(image)}")

    def _mend(self, image: str) -> str:
        """Say what a user can do about a missing image."""
        tool = self.engine.name.lower()
        return (
            f"Build it (`{tool} build -t {image} FOLDER`), import it (`{tool} load -i FILE`), or name no image: "
            f"the default one, {DEFAULT_IMAGE}, is made of this machine's programs (`ale sandbox image build`)."
        )
