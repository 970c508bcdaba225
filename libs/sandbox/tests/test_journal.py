"""The journal of a sandbox tells what happened in it, without secrets and within bounds."""

from __future__ import annotations

from typing import Any

from ale.specs.sandbox import SandboxSpec

from .attached_client import eventually, spec_for
from .conftest import SECRET


async def test_the_journal_holds_no_secret_and_nothing_that_a_terminal_would_obey(local: Any, box: Any) -> None:
    await box.exec(f"echo {SECRET} \x1b]0;title\x07\nsecond ü ✓")
    await box.exec(f": {'x' * 190}{SECRET}")
    async with await local.attach(box.id) as there:
        await there.exec(f"false {SECRET}")
        log = await there.logs()
    assert "hunter2" not in log
    assert "echo ${oc.env:KEY} \\x1b]0;title\\x07\\nsecond ü ✓\n" in log
    assert "false ${oc.env:KEY}\n" in log
    assert "exit code 1\n" in log
    assert all(part.isprintable() for part in log.splitlines())


async def test_the_journal_tells_of_network_that_was_refused(local: Any) -> None:
    spec = SandboxSpec(network="allow", allow=("192.0.2.1:443",))
    async with await local.start_sandbox(spec) as box:
        assert (await box.exec("exec 3<>/dev/tcp/192.0.2.7/80")).exit_code != 0
        assert await eventually(lambda: "network refused: tcp 192.0.2.7:80: " in str(box.journal))


async def test_the_journal_says_why_a_sandbox_ended_also_afterwards(local: Any) -> None:
    box = await local.start_sandbox(spec_for(local))
    await box.upload({"one": b"1", "two": b"2"})
    await box.download("one")
    await box.stop()
    log = await box.logs()
    assert "upload: one, two\n" in log
    assert "download: one\n" in log
    assert "the sandbox ends: it was stopped\n" in log


async def test_the_journal_is_bounded(local: Any, box: Any) -> None:
    for number in range(1200):
        box.note(f"line {number} {'y' * 5000}")
    log = str(box.journal)
    assert log.count("\n") == 1000
    assert "line 1199 " in log
    assert "line 199 " not in log
    assert len(log) < 300_000
