"""Which images a worker's machine has, so that the admin prefers this worker for them from the start."""

from __future__ import annotations

from ale.errors import AleError
from ale.specs.sandbox import SandboxProvider
from ale_sandbox.containers.image_snapshots import REPOSITORY
from ale_sandbox.containers.provider import ContainerProvider

IMPLIED = "docker.io/library/", "docker.io/"
"""Prefixes of image names that clients leave out and Podman adds."""


async def images_of(provider: SandboxProvider) -> set[str]:
    """Return the names of the images that a provider has, without snapshots; none if its sandboxes are no
    containers. Raises `SandboxError`."""
    if not isinstance(provider, ContainerProvider):
        return set()
    names = {short_name(name) for image in await provider.engine.images(label=None) for name in image.names}
    return {name for name in names if not name.startswith(REPOSITORY)}


async def may_be_gone(provider: SandboxProvider, image: str) -> bool:
    """Whether a provider may lack an image from which no sandbox could be started: its engine says that it does, or
    there is none to ask."""
    if not isinstance(provider, ContainerProvider):
        return True
    try:
        return await provider.engine.find_image(image) is None
    except AleError:
        return False  # it says nothing about the image


def short_name(name: str) -> str:
    """Return an image's name as clients write it."""
    for prefix in IMPLIED:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name
