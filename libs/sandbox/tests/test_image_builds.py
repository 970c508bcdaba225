"""Images that are built from the Dockerfiles of tasks."""

from __future__ import annotations

import asyncio
import tarfile
import time
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ale.errors import TaskError
from ale.specs.sandbox import SandboxSpec
from ale.task import ImageBuild
from ale_sandbox.containers import image_builds
from ale_sandbox.containers.engine import BuildFailed
from ale_sandbox.containers.image_builds import ImageBuilds, context_tar, digest_of
from ale_sandbox.containers.images import Images

BASE = "FROM ale-base:1\n"
FILES = st.dictionaries(st.sampled_from(["a", "b/c", "d"]), st.text(max_size=3) | st.binary(max_size=3), max_size=3)


@given(FILES, FILES)
def test_the_same_content_has_the_same_name_and_other_content_another(one: Any, other: Any) -> None:
    def content(files: Any) -> dict[str, bytes]:
        return {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}

    same = content(one) == content(other)
    builds = [ImageBuild(dockerfile=BASE, files=files) for files in (one, other)]
    assert (digest_of(builds[0]) == digest_of(builds[1])) == same


def test_the_folder_has_every_file_and_programs_may_run() -> None:
    packed = context_tar(ImageBuild(dockerfile=BASE, files={"run/it": "#!/bin/sh\n", "data": b"\xff"}))
    with tarfile.open(fileobj=BytesIO(packed)) as tar:
        modes = {member.name: member.mode for member in tar}
    assert modes == {"run/it": 0o755, "data": 0o644, "Dockerfile": 0o644}
    with pytest.raises(TaskError, match=r"'../x' beside a task's Dockerfile"):
        context_tar(ImageBuild(dockerfile=BASE, files={"../x": ""}))


async def test_an_image_is_built_once_by_its_content(provider: Any) -> None:
    text = f"made for the test at {time.time()}"
    build = ImageBuild(
        dockerfile=BASE + "COPY greet /opt/greet\nRUN /opt/greet > /opt/said\n",
        files={"greet": f"#!/bin/sh\necho {text}\n"},
    )
    names = await asyncio.gather(*(provider.image_from(build) for _ in range(3)))
    assert len(set(names)) == 1
    try:
        made = await provider.engine.find_image(names[0])
        async with await provider.start_sandbox(SandboxSpec(image=names[0])) as box:
            assert (await box.exec("cat /opt/said")).output.strip() == text
        assert await provider.image_from(build) == names[0]
        assert await provider.engine.find_image(names[0]) == made, "it is not built again"
        assert names[0] not in await provider.snapshots()
    finally:
        await provider.engine.remove_image(names[0])


async def test_an_image_that_two_remove_at_the_same_time_is_gone_for_both(provider: Any) -> None:
    for number in range(10):
        packed = context_tar(ImageBuild(dockerfile=BASE, files={"file": f"{number} {time.time()}"}))
        await provider.engine.import_image("ale-test-twice:1", packed)
        made = await provider.engine.find_image("ale-test-twice:1")
        gone = await asyncio.gather(*(provider.engine.remove_image(made) for _ in range(4)))
        assert gone == [True] * 4


async def test_the_environment_of_an_image_is_that_of_its_commands(provider: Any) -> None:
    build = ImageBuild(
        dockerfile=BASE + f"ENV PATH=/opt/tools:/usr/bin:/bin KIT='a = b' HOME=/nowhere\n# {time.time()}\n"
    )
    name = await provider.image_from(build)
    try:
        async with await provider.start_sandbox(SandboxSpec(image=name, env={"MINE": "1"})) as box:
            said = (await box.exec('echo "$PATH|$KIT|$MINE|$HOME"')).output.strip()
            assert said.rpartition("|")[0] == "/opt/tools:/usr/bin:/bin|a = b|1"
            assert not said.endswith("/nowhere"), "the home folder is the agent's"
            assert "/opt/tools" in (await box.exec("echo $PATH", user="tests")).output
        async with await provider.start_sandbox(SandboxSpec(image=name, env={"KIT": "other"})) as box:
            assert (await box.exec("echo $KIT")).output.strip() == "other", "the spec's stands above the image's"
    finally:
        await provider.engine.remove_image(name)


@pytest.mark.parametrize(
    ("dockerfile", "why"),
    [
        (BASE + "RUN echo this is why; exit 3\n", "this is why"),
        ("FRO ale-base:1\n", "(?i)FRO"),
        (BASE + "COPY missing /x\n", "missing"),
        (BASE + "RUN sleep 20\n", r"did not end within 3 s \(build.timeout_s\)"),
    ],
    ids=["fails", "no Dockerfile", "no file", "too long"],
)
async def test_a_dockerfile_that_cannot_be_built_is_the_tasks_fault(
    provider: Any, dockerfile: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def build_again(*_: object, **__: object) -> None:
        raise AssertionError("it is tried again")

    build = ImageBuild(dockerfile=f"{dockerfile}# {time.time()}\n", timeout_s=3 if "sleep" in dockerfile else 60)
    with pytest.raises(TaskError, match=why):
        await provider.image_from(build)
    monkeypatch.setattr(provider.engine, "build", build_again)
    with pytest.raises(TaskError, match=why):
        await provider.image_from(build)


class FailingEngine:
    """Has no image and can build none; the builds that it is asked for are counted."""

    name = "Failing"

    def __init__(self, hangs: bool) -> None:
        self.hangs, self.tried = hangs, 0

    async def find_image(self, image: str) -> None:
        """There is none."""

    async def build(self, image: str, context: bytes) -> None:
        """Fail, at once or not before the time-out."""
        self.tried += 1
        if self.hangs:
            await asyncio.Event().wait()
        raise BuildFailed("The network is down.")


@pytest.mark.parametrize("hangs", [False, True], ids=["fails", "too long"])
async def test_a_failed_build_is_tried_again_later_and_for_who_gives_it_the_time_that_it_lacked(
    hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: Any = FailingEngine(hangs)
    builds = ImageBuilds(engine, Images(engine, pull=False))

    async def tried(*timeouts_s: float) -> int:
        asked = [builds.image_from(ImageBuild(dockerfile="FROM a\n", timeout_s=each)) for each in timeouts_s]
        failed = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(each, TaskError) for each in failed), failed
        return int(engine.tried)

    assert await tried(0.001, 0.001, 0.001) == 1
    assert await tried(0.002) == (2 if hangs else 1)
    monkeypatch.setattr(image_builds, "FAILED_S", 0.0)
    builds, engine.tried = ImageBuilds(engine, builds.images), 0
    assert await tried(0.001, 0.001) == 2
