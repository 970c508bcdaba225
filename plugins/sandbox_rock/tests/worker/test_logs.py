"""What happened in a sandbox and what it uses, as the worker hands it out; with real local sandboxes."""

from __future__ import annotations

import asyncio
import os
import signal

from ale_rock.log_text import the_end
from ale_rock.worker import logs as logs_module
from ale_rock.worker.logs import SandboxLogs, new_lines

from .conftest import Worker


async def log_of(worker: Worker, box: str) -> str:
    """The log of a sandbox."""
    answer = await worker.client.get(f"/sandboxes/{box}/logs")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    return answer.text


async def test_the_log_has_commands_and_their_ends(worker: Worker) -> None:
    box = await worker.create()
    await worker.act(box, "execute", command=["sh", "-c", "exit 3"])
    await worker.act(box, "write_file", path="notes", content="x")
    text = await log_of(worker, box)
    assert "exec sh -c 'exit 3'" in text
    assert "exit code 3" in text
    assert "notes" in text
    assert await log_of(worker, "unknown") == ""


async def test_a_stopped_sandbox_hands_over_its_log(worker: Worker) -> None:
    box = await worker.create()
    await worker.act(box, "execute", command=["true"])
    for _ in range(2):  # a second request may come because the first answer was lost
        log = (await worker.client.delete(f"/sandboxes/{box}")).json()["log"]
        assert "exec true" in log
        assert log.endswith("the sandbox ends: it was stopped\n")
    assert await log_of(worker, box) == log
    await worker.create(box)
    assert "exec true" not in await log_of(worker, box), "the log is that of the sandbox that runs"


async def test_a_sandbox_that_died_leaves_its_log(worker: Worker) -> None:
    box = await worker.create()
    await worker.act(box, "execute", command=["true"])
    os.kill(worker.service.held[box].sandbox.record.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    async with asyncio.timeout(120):
        while box in worker.service.held:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert "exec true" in await log_of(worker, box)


async def test_a_followed_log_gives_new_lines_once_and_ends_with_the_sandbox(worker: Worker) -> None:
    box = await worker.create()
    await worker.act(box, "execute", command=["echo", "first"])
    async with worker.client.stream("GET", f"/sandboxes/{box}/logs?follow=true") as answer:
        lines = answer.aiter_lines()
        assert "echo first" in await anext(lines)
        await worker.act(box, "execute", command=["echo", "second"])
        await worker.client.delete(f"/sandboxes/{box}")
        rest = [line async for line in lines]
    assert sum("echo first" in line for line in rest) == 0
    assert sum("echo second" in line for line in rest) == 1
    assert rest[-1].endswith("the sandbox ends: it was stopped")


async def test_a_sandbox_that_does_not_hand_out_its_log_is_stopped_all_the_same(worker: Worker, monkeypatch) -> None:
    box = await worker.create()
    held = worker.service.held[box]
    monkeypatch.setattr(logs_module, "READ_S", 0.01)
    monkeypatch.setattr(held.sandbox, "logs", lambda: asyncio.sleep(3600))
    assert (await worker.client.delete(f"/sandboxes/{box}")).json() == {"log": ""}
    assert await worker.service.provider.list() == []


def test_a_line_is_new_as_often_as_it_was_not_there() -> None:
    assert new_lines([], ["a\n", "a\n"]) == ["a\n", "a\n"]
    assert new_lines(["a\n"], ["a\n", "b\n", "a\n"]) == ["b\n", "a\n"]
    assert new_lines(["old\n", "a\n"], ["a\n", "c\n"]) == ["c\n"]


def test_a_log_is_cut_at_whole_lines() -> None:
    assert the_end("ab\ncd\n", 6) == "ab\ncd\n"
    assert the_end("ab\ncd\n", 5) == "cd\n"
    assert the_end("éé\nb\n", 5) == "b\n"
    assert the_end("a" * 10, 5) == ""
    assert the_end("a\n", 0) == ""


def test_the_oldest_logs_of_ended_sandboxes_are_forgotten_first(monkeypatch) -> None:
    monkeypatch.setattr(logs_module, "KEPT_CHARS", 10)
    logs = SandboxLogs()
    for name in "abcd":
        logs._keep(name, name * 4)
    logs._keep("d", "dd")
    assert {name: asyncio.run(logs.text(name)) for name in "abcd"} == {"a": "", "b": "", "c": "cccc", "d": "dd"}


async def test_statistics_are_measured_in_the_sandbox(worker: Worker) -> None:
    box = await worker.create()
    await worker.act(box, "execute", command=["sh", "-c", "head -c 3000000 /dev/zero > /tmp/f; sleep 60 & sleep 60 &"])
    first = (await worker.client.get(f"/sandboxes/{box}/stats")).json()
    assert first["memory_bytes"] > 0
    assert first["pids"] >= 3
    assert first["disk_bytes"] >= 3_000_000
    assert first["cpu_s"] > 0
    await worker.act(box, "execute", command=["sh", "-c", "head -c 300000000 /dev/zero | md5sum"])
    second = (await worker.client.get(f"/sandboxes/{box}/stats")).json()
    assert second["cpu_s"] > first["cpu_s"]
    assert second["cpu_cores"] > 0
    answer = await worker.client.get("/sandboxes/unknown/stats")
    assert (answer.status_code, answer.json()["fault"]) == (503, "service")
