"""Commands, in both modes."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from ale.errors import SandboxError
from ale_local import LocalSandbox, LocalSandboxProvider

from .conftest import spec_of


async def running(sandbox: LocalSandbox, pattern: str) -> int:
    """How many processes of the sandbox have `pattern` in their command line."""
    script = (
        "import os\nn = 0\n"
        "for p in os.listdir('/proc'):\n"
        "    if p.isdigit() and int(p) != os.getpid():\n"
        "        try: n += PATTERN in open(f'/proc/{p}/cmdline').read().split(chr(0))\n"
        "        except OSError: pass\n"
        "print(n)"
    ).replace("PATTERN", repr(pattern))
    return int((await sandbox.exec("python3 -", stdin=script.encode())).stdout)


async def test_output_is_kept_apart_and_the_exit_code_returned(sandbox: LocalSandbox) -> None:
    result = await sandbox.exec("echo out; echo err >&2; exit 7")
    assert (result.exit_code, result.stdout, result.stderr) == (7, b"out\n", b"err\n")
    assert not result.timed_out
    assert not result.truncated
    assert result.duration_s > 0


async def test_a_signal_gives_the_exit_code_a_shell_would(sandbox: LocalSandbox) -> None:
    assert (await sandbox.exec("kill -9 $$")).exit_code == 137


async def test_bytes_and_unicode_pass_unchanged(sandbox: LocalSandbox) -> None:
    everything = bytes(range(256))
    assert (await sandbox.exec("cat", stdin=everything * 1000)).stdout == everything * 1000
    assert (await sandbox.exec("printf %s 'żółć 試 🙂'")).stdout.decode() == "żółć 試 🙂"


async def test_environment_and_folder_of_a_command(sandbox: LocalSandbox) -> None:
    await sandbox.exec("mkdir -p sub/folder")
    result = await sandbox.exec('echo "$GREETING"; basename "$PWD"', cwd="sub/folder", env={"GREETING": "a b=c"})
    assert result.stdout == b"a b=c\nfolder\n"
    missing = await sandbox.exec("true", cwd="no/such")
    assert missing.exit_code != 0
    assert b"no/such" in missing.stderr


async def test_nul_bytes_are_a_failed_command_not_a_dead_sandbox(sandbox: LocalSandbox) -> None:
    assert (await sandbox.exec("echo \0")).exit_code == 2
    assert (await sandbox.exec("true")).exit_code == 0


async def test_big_output_is_cut_and_the_command_goes_on(sandbox: LocalSandbox) -> None:
    result = await sandbox.exec("head -c 3000000 /dev/zero; echo done > end", max_output_bytes=1000)
    assert result.truncated
    assert result.stdout == b"\0" * 1000
    assert await sandbox.download("end") == b"done\n"


async def test_a_closed_pipe_ends_its_writer(sandbox: LocalSandbox) -> None:
    assert (await sandbox.exec("yes | head -n 1", timeout_s=5)).stdout == b"y\n"


async def test_a_time_out_keeps_the_output_and_kills_the_daemons_of_the_command(sandbox: LocalSandbox) -> None:
    await sandbox.exec("sleep 4001 &")
    command = "echo before; setsid sh -c 'setsid sleep 4002 & sleep 4002' & (setsid sleep 4002 &); sleep 4002"
    result = await asyncio.wait_for(sandbox.exec(command, timeout_s=2), 60)
    assert (result.exit_code, result.timed_out, result.stdout) == (124, True, b"before\n")
    assert await running(sandbox, "4002") == 0
    assert await running(sandbox, "4001") == 1, "what an earlier command started lives on"


async def test_a_time_out_finds_a_process_whose_first_thread_has_ended(sandbox: LocalSandbox) -> None:
    leaderless = (
        "import ctypes, threading, time\n"
        "def beat():\n"
        "    while True:\n"
        "        open('beat', 'w').write(str(time.monotonic()))\n"
        "        time.sleep(.05)\n"
        "threading.Thread(target=beat).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    await sandbox.upload({"leaderless.py": leaderless.encode()})
    async with await sandbox.open_shell() as shell:
        for run in (sandbox.exec, shell.run):
            assert (
                await run("python3 leaderless.py & python3 -c 'import time; time.sleep(60)'", timeout_s=3)
            ).timed_out
            first = await sandbox.download("beat")
            await asyncio.sleep(0.3)
            assert await sandbox.download("beat") == first, "it looks like a zombie, and lives on"


async def test_a_time_out_outruns_a_fork_bomb(box: LocalSandbox) -> None:
    result = await box.exec("f() { f | f & }; f; sleep 100", timeout_s=0.5)
    assert result.timed_out
    await box.kill_agent_processes()
    assert (await box.exec("echo alive")).stdout == b"alive\n"


async def test_background_servers_survive_and_do_not_hold_the_command(sandbox: LocalSandbox) -> None:
    served = "python3 -u -c 'import time\nwhile True: print(1); time.sleep(.01)' & echo started"
    result = await sandbox.exec(served, timeout_s=60)
    assert not result.timed_out
    assert b"started\n" in result.stdout
    await asyncio.sleep(0.3)
    assert (await sandbox.exec("jobs; ps ax 2>/dev/null | grep -c '[t]ime.sleep' || pgrep -fc '[t]ime.sleep'")).stdout
    assert await running(sandbox, "import time\nwhile True: print(1); time.sleep(.01)") == 1


async def test_cancelling_a_call_kills_its_command(sandbox: LocalSandbox) -> None:
    call = asyncio.create_task(sandbox.exec("setsid sleep 4003 & sleep 4003"))
    await asyncio.sleep(0.2)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.sleep(0.2)
    assert await running(sandbox, "4003") == 0


async def test_killing_the_agents_processes_spares_the_sandbox(sandbox: LocalSandbox) -> None:
    await sandbox.exec("(setsid sleep 4004 &); nohup sleep 4004 >/dev/null 2>&1 &")
    call = asyncio.create_task(sandbox.exec("sleep 4004"))
    await asyncio.sleep(0.2)
    await sandbox.kill_agent_processes()
    assert (await call).exit_code == 137
    assert await running(sandbox, "4004") == 0


async def test_stop_while_busy_ends_the_calls_and_is_idempotent(sandbox: LocalSandbox) -> None:
    call = asyncio.create_task(sandbox.exec("sleep 4005"))
    await asyncio.sleep(0.2)
    await asyncio.gather(sandbox.stop(), sandbox.stop())
    await sandbox.stop()
    with pytest.raises(SandboxError, match="was stopped"):
        await call
    for later in (sandbox.exec("true"), sandbox.upload({"a": b""}), sandbox.download("a"), sandbox.stats()):
        with pytest.raises(SandboxError):
            await later


async def test_a_dead_resident_is_a_sandbox_error_never_a_failed_command(sandbox: LocalSandbox) -> None:
    call = asyncio.create_task(sandbox.exec("sleep 4006"))
    await asyncio.sleep(0.2)
    os.kill(sandbox.record.pid, signal.SIGKILL)
    with pytest.raises(SandboxError, match="is gone"):
        await call
    with pytest.raises(SandboxError):
        await sandbox.exec("true")


async def test_a_lifetime_ends_a_sandbox(provider: LocalSandboxProvider) -> None:
    sandbox = await provider.start_sandbox(spec_of(provider, lifetime_s=0.3))
    with pytest.raises(SandboxError, match="lifetime"):
        await sandbox.exec("sleep 30")
    await sandbox.stop()
    assert await provider.list() == []


async def test_what_no_program_can_be_given_is_a_sentence(sandbox: LocalSandbox) -> None:
    for more in ({"cwd": "/tmp\0x"}, {"env": {"A": "x\0"}}, {"env": {"": "x"}}, {"env": {"A=B": "x"}}):
        done = await sandbox.exec("echo hi", **more)  # type: ignore[arg-type]
        assert (done.exit_code, done.stdout) == (2, b"")
        assert b"no shell can take that" in done.stderr
        with pytest.raises(SandboxError, match="A shell cannot be"):
            await sandbox.open_shell(**more)  # type: ignore[arg-type]
