"""These tests check attaching (`Attaches`): another process works in a sandbox that it did not start.

A second provider that was not started plays the other process, as in `ale sandbox exec`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ale.errors import SandboxError
from ale.specs.sandbox import ExecResult
from ale.specs.sandbox_protocols import Attaches, Logs, Measures, SandboxStats, Shells, Streams, Trees
from ale_testing.async_tests import async_test, cancelled, equal_without_diff, fails_with
from ale_testing.plugin_under_test import Subject
from ale_testing.sandbox_setup import EVERY_BYTE, LARGE, LOOP, WRITES, ends_counting, spec

needs = pytest.mark.ale_needs.with_args


@asynccontextmanager
async def attached(subject: Subject, **more: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A sandbox as its owner has it, and as somebody who attached to it has it."""
    async with (
        subject.build() as provider,
        await provider.start_sandbox(spec(subject, **more)) as box,
        await subject.build(run_id="other").attach(box.id) as there,
    ):
        yield box, there


@needs(Attaches)
@async_test
async def test_an_attached_process_runs_commands_like_the_owner(subject: Subject) -> None:
    async with attached(subject, env={"FROM_SPEC": "spec"}) as (box, there):
        assert there.id == box.id, "an attached sandbox must have the id of the sandbox"
        assert there.spec.env == box.spec.env, "an attached sandbox must know its spec (but for its files)"
        done = await there.exec("printf $FROM_SPEC-$MORE; cat >&2; exit 7", env={"MORE": "more"}, stdin=EVERY_BYTE)
        assert done.exit_code == 7, f"exec through an attachment must give the exit code, 7, not {done.exit_code}"
        assert done.stdout == b"spec-more", "environment of spec and call must reach the command"
        assert done.stderr == EVERY_BYTE, "stdin must reach the command, and stdout and stderr come back apart"
        results = await asyncio.gather(*(who.exec(f"sleep 0.2; echo {i}") for i in range(4) for who in (box, there)))
        assert [r.stdout for r in results] == [f"{i // 2}\n".encode() for i in range(8)], (
            "commands of the owner and of who attached must run side by side, each with its own output"
        )
        late = await there.exec("echo before; sleep 60", timeout_s=2.0)
        assert (late.exit_code, late.timed_out, late.stdout) == (124, True, b"before\n"), "time-outs hold there too"


@needs(Attaches)
@async_test
async def test_an_attached_process_reads_and_writes_the_same_files(subject: Subject) -> None:
    async with attached(subject, files={"given": b"1"}) as (box, there):
        assert await there.download("given") == b"1", "files of the spec must be there for who attached"
        await there.upload({"large": LARGE, "every": EVERY_BYTE})
        assert equal_without_diff(await box.download("large"), LARGE), (
            "what was uploaded through an attachment must be there, whole"
        )
        assert equal_without_diff(await there.download("large"), LARGE), (
            "a large file must come back through an attachment, whole"
        )
        await fails_with(there.download("no/such"), FileNotFoundError, why="download of a path that is not there")


@needs(Attaches)
@async_test
async def test_detaching_ends_its_own_commands_and_not_the_sandbox(subject: Subject) -> None:
    async with attached(subject) as (box, there):
        own = asyncio.ensure_future(box.exec("sleep 1.5; echo own"))
        running = asyncio.ensure_future(there.exec(LOOP))
        await box.exec(WRITES)
        await there.stop()
        await fails_with(asyncio.wait_for(running, 20), SandboxError, why="a command of who has left")
        await fails_with(there.exec("true"), SandboxError, why="a call after leaving")
        await there.stop()
        assert (await own).stdout == b"own\n", "a command of the owner's must not notice that somebody left"
        assert await ends_counting(box), "leaving must end what was begun through the attachment"


@needs(Attaches)
@async_test
async def test_cancelling_a_command_of_an_attached_process_kills_it(subject: Subject) -> None:
    async with attached(subject) as (box, there):
        running = asyncio.ensure_future(there.exec(LOOP))
        await box.exec(WRITES)
        assert await cancelled(running, 0.0), "exec must not end before its command does"
        assert await ends_counting(box), "cancelling exec must kill what the command started"
        assert (await there.exec("echo on")).stdout == b"on\n", "an attachment must go on after a cancelled command"


@needs(Attaches)
@async_test
async def test_an_attached_process_learns_that_the_sandbox_has_ended(subject: Subject) -> None:
    async with attached(subject) as (box, there):
        running = asyncio.ensure_future(there.exec("sleep 60"))
        await asyncio.sleep(0.2)
        await box.stop()
        await fails_with(asyncio.wait_for(running, 20), SandboxError, why="a command whose sandbox was stopped")
        await fails_with(there.exec("true"), SandboxError, why="a call in a sandbox that was stopped")
        again = subject.build(run_id="other").attach(box.id)
        await fails_with(again, SandboxError, why="attaching to a sandbox that was stopped")


@needs(Attaches)
@async_test
async def test_attaching_to_a_missing_sandbox_is_an_error_message(subject: Subject) -> None:
    async with subject.build() as provider:
        for who in (provider, subject.build(run_id="other")):
            error = await fails_with(
                who.attach(f"ale-kit-none-{os.getpid()}"), SandboxError, why="attaching to a sandbox that there is not"
            )
            assert f"ale-kit-none-{os.getpid()}" in str(error), "the error must name the sandbox"


@needs(Attaches)
@needs(Measures)
@needs(Logs)
@async_test
async def test_an_attached_process_can_read_stats_and_the_log(subject: Subject) -> None:
    async with attached(subject) as (box, there):
        await box.exec("echo by-the-owner")
        await there.exec("exit 9 # by-a-visitor")
        assert isinstance(await there.stats(), SandboxStats), "stats() must work through an attachment"
        logs = await there.logs()
        for words in ("by-the-owner", "by-a-visitor", "9"):
            assert words in logs, f"logs() must tell of the commands of both, and of their ends; {words!r} is missing"


@needs(Attaches)
@needs(Measures)
@async_test
async def test_commands_of_an_attached_process_keep_a_sandbox_from_being_idle(subject: Subject) -> None:
    async with attached(subject, idle_s=3.0) as (_, there):
        assert (await there.exec("sleep 4; echo on")).stdout == b"on\n", "a sandbox in which a command runs is not idle"
        assert (await there.exec("echo on")).stdout == b"on\n", "each call must put the end off by idle_s"
        for _ in range(100):
            try:
                await there.stats()
            except SandboxError:
                return
            await asyncio.sleep(0.2)
        raise AssertionError("an attachment that asks for no work must not keep a sandbox from ending when it is idle")


@needs(Attaches)
@needs(Shells)
@async_test
async def test_a_shell_of_an_attached_process_is_its_own_and_ends_on_detach(subject: Subject) -> None:
    async with attached(subject) as (box, there):
        own, theirs = await box.open_shell(), await there.open_shell()
        await theirs.run("x=theirs; mkdir inner; cd inner")
        await own.run("x=own")
        said = (await theirs.run("echo $x; pwd; (exit 4)")).stdout.split(b"\n")
        assert said[0] == b"theirs", "a shell through an attachment must keep its variables"
        assert said[1].endswith(b"/inner"), "a shell through an attachment must keep its folder"
        assert (await own.run("echo $x")).stdout == b"own\n", "shells of the owner and of who attached must not mix"
        await theirs.run(f"cd ..; ({LOOP}) >/dev/null 2>&1 & until [ -e beat ]; do sleep 0.05; done")
        await there.stop()
        await fails_with(theirs.run("true"), SandboxError, why="a command in a shell of who has left")
        assert await ends_counting(box), "leaving must end the shell and what it started"
        assert (await own.run("echo $x")).stdout == b"own\n", "the owner's shell must go on when somebody leaves"


@needs(Attaches)
@needs(Streams)
@async_test
async def test_output_reaches_an_attached_process_as_it_is_written_and_in_order(subject: Subject) -> None:
    async with attached(subject) as (box, there):
        stream = there.exec_stream("echo first; while [ ! -e go ]; do sleep 0.05; done; seq 1 200000; exit 3")
        data = b""
        async for part in stream:
            if isinstance(part, ExecResult):
                assert part.exit_code == 3, "the last item must be the result"
                break
            data += part.data
            if data == b"first\n":  # it has come while the command runs
                await box.exec("touch go")
        assert equal_without_diff(data, b"first\n" + b"".join(b"%d\n" % i for i in range(1, 200001))), (
            "nothing may be cut or mixed up"
        )


@needs(Attaches)
@needs(Trees)
@async_test
async def test_trees_of_files_go_through_an_attachment(subject: Subject) -> None:
    async with attached(subject) as (box, there):
        source = subject.folder / "tree-to-attach"
        (source / "deep").mkdir(parents=True)
        (source / "deep" / "every").write_bytes(EVERY_BYTE)
        (source / "large").write_bytes(LARGE)
        await there.upload_tree(source, "tree")
        assert await box.download("tree/deep/every") == EVERY_BYTE, "upload_tree must work through an attachment"
        target = subject.folder / "tree-from-attachment"
        await there.download_tree("tree", target)
        assert equal_without_diff((target / "large").read_bytes(), LARGE), (
            "download_tree must work through an attachment"
        )
