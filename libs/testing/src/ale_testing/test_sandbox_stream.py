"""These tests check output that is read while it is written (`Streams`): it is complete, in order, no faster than its
reader, and ends with its reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from ale.errors import SandboxError
from ale.specs.sandbox import ExecResult
from ale.specs.sandbox_protocols import Output, Streams
from ale_testing.async_tests import async_test, equal_without_diff, fails_with, patience_s
from ale_testing.plugin_under_test import Subject
from ale_testing.sandbox_setup import EVERY_BYTE, LOOP, counts_no_more, ends_counting, spec, started

needs_streams = pytest.mark.ale_needs.with_args(Streams)

Items = AsyncGenerator[Output | ExecResult, None]
MIB = 1 << 20


async def read(items: Items) -> tuple[dict[str, bytes], ExecResult]:
    """All of it: each output, and the result."""
    found = {"stdout": bytearray(), "stderr": bytearray()}
    result: ExecResult | None = None
    async for item in items:
        assert result is None, f"the result must be the last item; after it came {item!r:.100}"
        if isinstance(item, ExecResult):
            result = item
        else:
            assert item.data, "a piece of output must not be empty"
            found[item.stream] += item.data
    assert result is not None, "the last item must be the result"
    assert (result.stdout, result.stderr, result.truncated) == (b"", b"", False), "the result must hold no output"
    return {name: bytes(data) for name, data in found.items()}, result


async def first(items: Items) -> Output:
    """The next piece, which must come while the command runs."""
    item = await asyncio.wait_for(anext(items), patience_s())
    assert isinstance(item, Output), f"a piece of output must come while the command runs; there came {item!r:.100}"
    return item


@needs_streams
@async_test
async def test_output_arrives_while_the_command_runs(subject: Subject) -> None:
    async with started(subject) as (_, box):
        command = "echo one; until [ -e go ]; do sleep 0.05; done; echo two >&2; (exit 7)"
        async with aclosing(box.exec_stream(command, timeout_s=patience_s() + 10)) as items:
            try:
                piece = await first(items)
            except TimeoutError:
                raise AssertionError("output must come as it is written, not when the command has ended") from None
            assert piece == Output("stdout", b"one\n"), f"the first piece must be what was written; it is {piece}"
            await box.upload({"go": b""})
            found, result = await read(items)
        assert found == {"stdout": b"", "stderr": b"two\n"}, "each piece must say which output it is of"
        assert (result.exit_code, result.timed_out) == (7, False)
        assert result.duration_s > 0, "duration_s must be measured"


@needs_streams
@async_test
async def test_a_stream_is_complete_and_unchanged(subject: Subject) -> None:
    async with started(subject, files={"every": EVERY_BYTE * 4096}) as (_, box):
        command = "for i in 1 2 3 4 5 6 7 8; do cat every; done; cat every >&2"
        found, result = await read(box.exec_stream(command))
        assert result.exit_code == 0
        assert equal_without_diff(found["stdout"], EVERY_BYTE * 4096 * 8), "stdout must come whole: 8 MiB"
        assert equal_without_diff(found["stderr"], EVERY_BYTE * 4096), "stderr must come whole"
        found, _ = await read(box.exec_stream("i=0; while [ $i -lt 3000 ]; do echo $i; echo $i >&2; i=$((i+1)); done"))
        lines = "".join(f"{i}\n" for i in range(3000)).encode()
        assert equal_without_diff(found, {"stdout": lines, "stderr": lines}), (
            "many small writes must come in their order"
        )


@needs_streams
@async_test
async def test_a_streamed_command_behaves_like_any_other(subject: Subject) -> None:
    async with started(subject, files={"in/file": b"1"}) as (_, box):
        command = 'cat file -; printf "%s" "$MORE"'
        found, _ = await read(box.exec_stream(command, stdin=EVERY_BYTE, cwd="in", env={"MORE": "mö"}))
        assert found["stdout"] == b"1" + EVERY_BYTE + "mö".encode(), "stdin, folder and environment must reach it"
        for command, code in (("no-such-program-here", 127), ("kill -9 $$", 137), ("true", 0)):
            _, result = await read(box.exec_stream(command))
            assert result.exit_code == code, f"exec_stream({command!r}) must give {code}, as a shell does"
        for wrong in (box.exec_stream("echo \0"), box.exec_stream("true", cwd="no/such")):
            found, result = await read(wrong)
            assert (result.exit_code != 0, bool(found["stderr"])) == (True, True), (
                "it must be a failed command that says why"
            )


@needs_streams
@async_test
async def test_a_slow_reader_delays_only_its_own_command(subject: Subject) -> None:
    async with started(subject) as (_, box):
        command = "head -c 16777216 /dev/zero | tr '\\0' x; echo > written; head -c 100000 /dev/zero"
        async with aclosing(box.exec_stream(command)) as items:
            begun = len((await first(items)).data)
            for i in range(5):
                await asyncio.sleep(0.2)
                assert (await box.exec(f"echo {i}")).stdout == f"{i}\n".encode(), (
                    "a slow reader must hold up nobody else"
                )
            written = await box.exec("ls written")
            assert written.exit_code != 0, "a command whose output is not read must wait; it wrote 16 MiB to nobody"
            found, result = await asyncio.wait_for(read(items), 60)
        assert (begun + len(found["stdout"]), result.exit_code) == (16 * MIB + 100000, 0), (
            "it must go on when it is read"
        )


@needs_streams
@async_test
async def test_a_reader_that_leaves_ends_the_command(subject: Subject) -> None:
    async with started(subject) as (_, box):
        async with aclosing(box.exec_stream(LOOP.replace("; done", "; echo; done"))) as items:
            async for item in items:
                assert item == Output("stdout", b"\n"), f"there came {item!r}"
                break
        assert await ends_counting(box), "leaving a stream before its end must end its command"
        async with aclosing(box.exec_stream(f"({LOOP}) & yes")) as items:
            await first(items)  # and then it waits for a reader
        assert await ends_counting(box), "leaving a stream must also end a command that waits for its reader"

        async def reader() -> None:
            async with aclosing(box.exec_stream(LOOP)) as items:
                async for _ in items:
                    pass

        task = asyncio.ensure_future(reader())
        await asyncio.sleep(0.3)
        task.cancel()
        await asyncio.wait([task], timeout=20)
        assert task.cancelled(), "a reader that is cancelled must end as cancelled"
        assert await ends_counting(box), "a reader that is cancelled must end its command"


@needs_streams
@async_test
async def test_a_stream_that_times_out_ends_with_its_output_and_exit_code_124(subject: Subject) -> None:
    async with started(subject) as (_, box):
        found, result = await asyncio.wait_for(
            read(box.exec_stream(f"echo before; ({LOOP}) & sleep 60; echo after", timeout_s=3.0)), 30
        )
        assert (result.exit_code, result.timed_out) == (124, True), (
            f"a time-out must say so and give 124; it gave {result}"
        )
        assert found["stdout"] == b"before\n", f"what was written until then must come; it was {found['stdout']!r}"
        assert await counts_no_more(box), "a time-out must kill the whole process tree"
        async with aclosing(box.exec_stream("yes", timeout_s=2.0)) as items:
            await first(items)
            await asyncio.sleep(2.5)
            _, result = await asyncio.wait_for(read(items), 30)
        assert result.exit_code == 124, "a command that waits for its reader times out too"


@needs_streams
@async_test
async def test_a_background_process_does_not_hold_a_stream(subject: Subject) -> None:
    async with started(subject) as (_, box):
        found, result = await asyncio.wait_for(read(box.exec_stream("(sleep 60; echo late) & echo mine")), 30)
        assert (found["stdout"], result.exit_code) == (b"mine\n", 0), "a stream must end when its command does"
        _, result = await asyncio.wait_for(read(box.exec_stream("yes & sleep 0.2")), 30)
        assert result.exit_code == 0, "also where what is left in the background writes without end"


@needs_streams
@async_test
async def test_a_dead_sandbox_ends_a_stream_with_an_error(subject: Subject) -> None:
    async with subject.build() as provider:
        box = await provider.start_sandbox(spec(subject))
        items = box.exec_stream("echo one; sleep 60")
        assert await first(items) == Output("stdout", b"one\n")
        reading = asyncio.ensure_future(read(items))
        await asyncio.sleep(0.1)
        await box.stop()
        await fails_with(asyncio.wait_for(reading, 20), SandboxError, why="a stream whose sandbox is stopped")
        await fails_with(read(box.exec_stream("true")), SandboxError, why="a stream after stop()")
