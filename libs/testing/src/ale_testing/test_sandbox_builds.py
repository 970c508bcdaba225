"""These tests check a provider that builds the images of tasks from their Dockerfiles (capability `builds`).

The base is an image that the provider makes itself (`BuildsImages`), or else its default one, so nothing is fetched.
The Dockerfiles are the same in every run, so that what a provider keeps by its content does not grow."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from ale.errors import TaskError
from ale.specs.sandbox_protocols import BuildsDockerfiles, BuildsImages
from ale.task import ImageBuild
from ale_testing.async_tests import async_test, cancelled, fails_with
from ale_testing.plugin_under_test import Subject
from ale_testing.sandbox_setup import needs, spec

EVERY_BYTE = bytes(range(256))


async def base_of(provider: Any) -> str:
    """The first line of the Dockerfiles."""
    if isinstance(provider, BuildsImages):
        return f"FROM {await provider.build_image()}\n"
    assert provider.default_image is not None, "a provider that builds images must have a default image or BuildsImages"
    return f"FROM {provider.default_image}\n"


@needs("builds")
@async_test
async def test_who_claims_to_build_has_the_protocol(subject: Subject) -> None:
    async with subject.build() as provider:
        assert isinstance(provider, BuildsDockerfiles), "the capability 'builds' means: it has image_from (async)"


@needs("builds")
@async_test
async def test_an_image_has_what_its_dockerfile_and_files_say(subject: Subject) -> None:
    async with subject.build() as provider:
        if "builds" not in provider.capabilities:
            return  # narrowed by start(): this machine does not give it, and the provider says so
        build = ImageBuild(
            dockerfile=f"{await base_of(provider)}COPY greet /opt/greet\nCOPY sub/bytes /opt/bytes\n"
            "RUN /opt/greet > /opt/said\n",
            files={"greet": "#!/bin/sh\necho größe ✓\n", "sub/bytes": EVERY_BYTE},
        )
        image = await provider.image_from(build)
        async with await provider.start_sandbox(spec(subject, image=image)) as box:
            said = await box.exec("cat /opt/said")
            assert said.output == "größe ✓\n", f"the Dockerfile's commands must have run; found {said.output!r}"
            assert await box.download("/opt/bytes") == EVERY_BYTE, "files beside the Dockerfile must arrive as they are"


@needs("builds")
@async_test
async def test_the_same_content_is_built_once_and_other_content_is_another_image(subject: Subject) -> None:
    async with subject.build() as provider:
        if "builds" not in provider.capabilities:
            return  # narrowed by start(): this machine does not give it, and the provider says so
        stamp = "head -c 16 /dev/urandom | od -An -tx1 > /opt/stamp"
        one = ImageBuild(
            dockerfile=f"{await base_of(provider)}COPY which /opt/which\nRUN {stamp}\n", files={"which": "1"}
        )
        other = one.model_copy(update={"files": {"which": b"2"}})
        names = await asyncio.gather(*(provider.image_from(build) for build in (one, one, other, one)))
        assert len({names[0], names[1], names[3]}) == 1, "the same Dockerfile and files must give the same image"
        assert names[2] != names[0], "other files beside the Dockerfile must give another image"
        first = await stamp_in(subject, provider, names[0])
        again = await provider.image_from(one)
        assert (again, await stamp_in(subject, provider, again)) == (names[0], first), (
            "an image whose content is there must not be built again"
        )
    async with subject.build() as later:
        assert await later.image_from(one) == names[0], (
            "another provider on this machine must find the image by its content"
        )


async def stamp_in(subject: Subject, provider: Any, image: str) -> bytes:
    """What the build of the image drew."""
    async with await provider.start_sandbox(spec(subject, image=image)) as box:
        found: bytes = await box.download("/opt/stamp")
        return found


@needs("builds")
@async_test
async def test_a_dockerfile_that_fails_is_the_tasks_fault_with_its_output(subject: Subject) -> None:
    async with subject.build() as provider:
        if "builds" not in provider.capabilities:
            return  # narrowed by start(): this machine does not give it, and the provider says so
        base = await base_of(provider)
        for lines, said in (
            ("RUN echo kit-says-why; exit 3\n", "kit-says-why"),
            ("COPY missing /x\n", "missing"),
            ("NONSENSE\n", ""),
        ):
            why = f"a Dockerfile with {lines.strip()!r}"
            error = await fails_with(provider.image_from(ImageBuild(dockerfile=base + lines)), TaskError, why=why)
            assert said in str(error), f"{why}: the sentence must have the end of the output; it is {error}"
        assert await provider.image_from(ImageBuild(dockerfile=base)), "a build that fails must not hinder others"


@needs("builds")
@async_test
async def test_a_build_that_does_not_end_is_given_up(subject: Subject) -> None:
    async with subject.build() as provider:
        if "builds" not in provider.capabilities:
            return  # narrowed by start(): this machine does not give it, and the provider says so
        slow = ImageBuild(dockerfile=f"{await base_of(provider)}RUN sleep 600\n", timeout_s=3)
        began = time.monotonic()
        await fails_with(provider.image_from(slow), TaskError, why="a build that does not end in build.timeout_s")
        took = time.monotonic() - began
        assert took < 30, f"a build must be given up after build.timeout_s (3 s); it took {took:.0f} s"


@needs("builds")
@async_test
async def test_a_build_that_is_cancelled_can_be_made_later(subject: Subject) -> None:
    async with subject.build() as provider:
        if "builds" not in provider.capabilities:
            return  # narrowed by start(): this machine does not give it, and the provider says so
        base = await base_of(provider)
        build = ImageBuild(dockerfile=f"{base}RUN sleep 2 && mkdir -p /opt && echo done > /opt/done\n")
        for after_s in (0.0, 0.2):
            with contextlib.suppress(TaskError):
                await cancelled(provider.image_from(build), after_s)
        image = await provider.image_from(build)
        async with await provider.start_sandbox(spec(subject, image=image)) as box:
            assert (await box.exec("cat /opt/done")).stdout == b"done\n", "a cancelled build must leave no half image"
