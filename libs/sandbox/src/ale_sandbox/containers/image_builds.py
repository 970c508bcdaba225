"""Images of tasks, built from their Dockerfiles and kept by their content: the same Dockerfile and files are built once
on a machine. They stay until somebody removes them (`docker image rm $(docker image ls -q ale-build)`)."""

from __future__ import annotations

import asyncio
import hashlib
import io
import math
import re
import tarfile
import time
from dataclasses import dataclass
from pathlib import PurePosixPath
from weakref import WeakValueDictionary

from ale.errors import TaskError
from ale.task import ImageBuild, as_bytes
from ale_sandbox.containers.default_image import BASE, PYTHON, TAG
from ale_sandbox.containers.engine import BuildFailed, Engine
from ale_sandbox.containers.images import Images

NAME = "ale-build"
OWN_BASE = re.compile(rf"^\s*FROM\s+({BASE}|{PYTHON}):{TAG}\b", re.IGNORECASE | re.MULTILINE)
"""A Dockerfile that begins with an image that ALE makes itself."""
OUTPUT_CHARS = 1500
FAILED_S = 60.0
"""A build that failed is not tried again for so long, so that the rollouts of one task do not each try it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A build that failed."""

    sentence: str
    most_timeout_s: float
    """Only who gives it more time may try it again."""
    forget_at: float


class ImageBuilds:
    """The builds of a provider; each image is built by one of the starts that want it."""

    def __init__(self, engine: Engine, images: Images) -> None:
        self.engine, self.images = engine, images
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._failures: dict[str, Failure] = {}

    async def image_from(self, build: ImageBuild) -> str:
        """A build that failed is not tried again for `FAILED_S`."""
        name = f"{NAME}:{digest_of(build)}"
        async with self._locks.setdefault(name, asyncio.Lock()):
            if await self.engine.find_image(name) is None:
                self._forget_failures()
                failure = self._failures.get(name)
                if failure is not None and build.timeout_s <= failure.most_timeout_s:
                    raise TaskError(failure.sentence)
                await self._build(name, build)
        return name

    async def _build(self, name: str, build: ImageBuild) -> None:
        for base in OWN_BASE.findall(build.dockerfile):
            own = f"{base.lower()}:{TAG}"
            if await self.engine.find_image(own) is None:
                await self.images.build(own, python=base.lower() == PYTHON)
        tar = await asyncio.to_thread(context_tar, build)
        most_timeout_s = math.inf
        try:
            async with asyncio.timeout(build.timeout_s):
                await self.engine.build(name, tar)
        except TimeoutError:
            why, most_timeout_s = f"it did not end within {build.timeout_s:g} s (build.timeout_s)", build.timeout_s
        except BuildFailed as error:
            why = str(error)
        else:
            return
        why = why[-OUTPUT_CHARS:]
        sentence = f"The image of a task cannot be built by {self.engine.name} from its Dockerfile: {why}"
        self._failures[name] = Failure(sentence, most_timeout_s, time.monotonic() + FAILED_S)
        raise TaskError(sentence)

    def _forget_failures(self) -> None:
        now = time.monotonic()
        self._failures = {name: failure for name, failure in self._failures.items() if now < failure.forget_at}


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
