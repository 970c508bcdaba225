"""Images of tasks, built from their Dockerfiles and kept by their content: the same Dockerfile and files are built once
on a machine. They stay until somebody removes them (`docker image rm $(docker image ls -q ale-build)`)."""

from __future__ import annotations

import asyncio
import hashlib
import io
import re
import tarfile
from pathlib import PurePosixPath

from ale.errors import TaskError
from ale.task import ImageBuild, as_bytes
from ale_resident.containers.default_image import BASE, PYTHON, TAG
from ale_resident.containers.engine import BuildFailed, Engine
from ale_resident.containers.images import Images

NAME = "ale-build"
OWN_BASE = re.compile(rf"^\s*FROM\s+({BASE}|{PYTHON}):{TAG}\b", re.IGNORECASE | re.MULTILINE)
"""A Dockerfile that begins with an image that ALE makes itself."""
OUTPUT_CHARS = 1500


class ImageBuilds:
    """The builds of a provider; each image is built by one of the starts that want it."""

    def __init__(self, engine: Engine, images: Images) -> None:
        self.engine, self.images = engine, images
        self._locks: dict[str, asyncio.Lock] = {}
        self._failed: dict[str, TaskError] = {}

    async def image_from(self, build: ImageBuild) -> str:
        """See `BuildsDockerfiles.image_from`. A build that failed is not tried again by this provider."""
        name = f"{NAME}:{digest_of(build)}"
        async with self._locks.setdefault(name, asyncio.Lock()):
            if name in self._failed:
                raise self._failed[name]
            if await self.engine.find_image(name) is None:
                await self._build(name, build)
        return name

    async def _build(self, name: str, build: ImageBuild) -> None:
        for base in OWN_BASE.findall(build.dockerfile):
            own = f"{base.lower()}:{TAG}"
            if await self.engine.find_image(own) is None:
                await self.images.build(own, python=base.lower() == PYTHON)
        tar = await asyncio.to_thread(context_tar, build)
        try:
            async with asyncio.timeout(build.timeout_s):
                await self.engine.build(name, tar)
        except TimeoutError:
            why = f"it did not end within {build.timeout_s:g} s (build.timeout_s)"
        except BuildFailed as error:
            why = str(error)
        else:
            return
        self._failed[name] = TaskError(
            f"The image of a task cannot be built by {self.engine.name} from its Dockerfile: {why[-OUTPUT_CHARS:]}"
        )
        raise self._failed[name]


def digest_of(build: ImageBuild) -> str:
    """Return the tag of the image: a digest of the Dockerfile and the files beside it."""
    found = hashlib.sha256(build.dockerfile.encode())
    for path, content in sorted(build.files.items()):
        data = as_bytes(content)
        found.update(f"\0{path}\0{len(data)}\0".encode() + data)
    return found.hexdigest()[:24]


def context_tar(build: ImageBuild) -> bytes:
    """Pack the Dockerfile and its files; programs (that begin with `#!`) may be executed. Raises `TaskError` for a path
    that leads out of the folder."""
    with io.BytesIO() as whole:
        with tarfile.open(fileobj=whole, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path, content in {**build.files, "Dockerfile": build.dockerfile}.items():
                place, data = PurePosixPath(path), as_bytes(content)
                if place.is_absolute() or ".." in place.parts or not place.parts:
                    raise TaskError(f"The file {path!r} beside a task's Dockerfile must be at a relative path inside.")
                info = tarfile.TarInfo(str(place))
                info.size, info.mode = len(data), 0o755 if data.startswith(b"#!") else 0o644
                tar.addfile(info, io.BytesIO(data))
        return whole.getvalue()
