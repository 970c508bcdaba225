"""A session of ROCK's API: one persistent shell of a sandbox.

The shell (`ale.specs.sandbox_protocols.Shell`) keeps folder, variables, functions and jobs, gives each command its own
output, survives `exit`, and ends what a command started when its time is up. Here its two output streams become one,
in the order in which they were written, and its results become ROCK's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from shlex import quote

from ale.specs.sandbox import ExecResult
from ale.specs.sandbox_protocols import Shell, Shells
from ale_rock.schemas import COMMAND_ERROR, RockError, RunInSessionRequest, RunResult
from ale_rock.worker.nohup import ALIVE, PID, RUNS, START_WAIT_S, Jobs, find_job, sentence

DEFAULT_TIMEOUT_S = 300.0
"""Time-out of a command that names none: ROCK's client waits that long for an answer."""
MOST_S = 30 * 86_400.0
STARTUP_S = 60.0
MOST_OUTPUT_BYTES = 32 << 20
MOST_QUOTED = 64 << 10
"""How much of a failed command's output its error repeats, from the end."""


def text_of(output: bytes) -> str:
    """Decode output as ROCK does."""
    return output.decode("utf-8", "backslashreplace")


class Session:
    """One shell with its jobs. `Session.open` makes it."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.jobs = Jobs()
        self.used_at = time.monotonic()
        self.busy = 0
        """Commands that run or wait for their turn."""

    @classmethod
    async def open(cls, sandbox: Shells, env: Mapping[str, str], startup: list[str]) -> tuple[Session, str]:
        """Open a session, source the start-up files, and return their output with it."""
        session = cls(await sandbox.open_shell(env=env))
        if not startup:
            return session, ""
        try:
            # Not quoted, as in ROCK: `~/.bashrc` is what clients send.
            done = await session._run(" ; ".join(f". {path}" for path in startup), STARTUP_S)
        except BaseException:
            await session.shell.close()
            raise
        return session, text_of(done.stdout + done.stderr).rstrip()

    async def run(self, asked: RunInSessionRequest) -> RunResult:
        """Run a command. Raises `RockError` if it fails and `check` is `raise`, and `SandboxError`."""
        self.busy += 1
        try:
            return await self._answer(asked)
        finally:
            self.busy -= 1
            self.used_at = time.monotonic()

    async def _answer(self, asked: RunInSessionRequest) -> RunResult:
        timeout_s = min(asked.timeout or DEFAULT_TIMEOUT_S, MOST_S)
        job, alive = find_job(asked.command), ALIVE.fullmatch(asked.command)
        command = asked.command if job is None else job[0]
        if alive and alive[1] in self.jobs.running:
            if await self._job_runs(alive[1]):
                return RunResult(exit_code=0)
            self.jobs.end(alive[1], await self._exit_code_of(alive[1]))
            command = "false"
        done = await self._run(command, timeout_s)
        output = text_of(done.stdout + done.stderr).rstrip()
        if job is not None and not done.exit_code:
            return await self._watch_start(output, job[1], timeout_s, asked.job_exit_codes)
        fault, job_exit_code = "", None
        if done.timed_out:
            fault = f"The command did not end within {timeout_s:g} s, so it was ended; the session goes on."
        elif done.exit_code:
            fault = f"The command {asked.command[:1000]!r} failed with exit code {done.exit_code}."
        elif ended := self.jobs.report(asked.command):
            job_exit_code = ended[1]
            if asked.job_exit_codes and job_exit_code:
                fault = sentence(*ended)
        if fault and asked.check == "raise":
            quoted = f" Its output:\n{output[-MOST_QUOTED:]}" if output else ""
            raise RockError(fault + quoted, COMMAND_ERROR, done.exit_code or 1)
        cut = f"Only the first {MOST_OUTPUT_BYTES >> 20} MiB of the output were kept." if done.truncated else ""
        code = None if asked.check == "ignore" else done.exit_code
        return RunResult(
            output=output, exit_code=code, failure_reason=f"{fault} {cut}".strip(), job_exit_code=job_exit_code
        )

    async def close(self) -> bool:
        """End the shell and what it started, unless a background job runs in it: return whether it has ended."""
        if self.jobs.running:
            return False
        await self.shell.close()
        return True

    async def _run(self, command: str, timeout_s: float) -> ExecResult:
        # `eval` keeps $?, takes any text, and its redirection ends with it; `command` keeps a syntax error from ending
        # a POSIX shell.
        text = f"\\command eval {quote(command)} 2>&1"
        return await self.shell.run(text, timeout_s=timeout_s, max_output_bytes=MOST_OUTPUT_BYTES)

    async def _watch_start(self, output: str, file: str, timeout_s: float, is_reported: bool) -> RunResult:
        """Wait a moment for a job that was just started. Its failure is the result of its start if `is_reported`."""
        match = PID.search(output)
        if match is None:
            return RunResult(output=output, exit_code=0)
        pid = match[1]
        self.jobs.begin(pid, file)
        until, waited_s, pause_s = time.monotonic() + timeout_s / 2, 0.0, 0.01
        while await self._job_runs(pid):
            if waited_s >= START_WAIT_S or time.monotonic() > until:
                return RunResult(output=output, exit_code=0)
            await asyncio.sleep(pause_s)
            waited_s += pause_s
            pause_s = min(0.1, 2 * pause_s)
        exit_code = await self._exit_code_of(pid)
        self.jobs.end(pid, exit_code)
        if not (is_reported and exit_code):
            return RunResult(output=output, exit_code=0, job_exit_code=exit_code)
        del self.jobs.ended[file]
        wrote = await self._run(f"cat {file}", STARTUP_S)
        return RunResult(
            output=text_of(wrote.stdout).rstrip(),
            exit_code=exit_code,
            failure_reason=sentence(pid, exit_code),
            job_exit_code=exit_code,
        )

    async def _job_runs(self, pid: str) -> bool:
        """Whether a job still runs. `wait` is not used here: a bash whose `wait` is interrupted by a time-out may lose
        how its children ended, or not collect them, and then `kill -0` finds them for ever."""
        return not (await self._run(RUNS.format(pid=pid), STARTUP_S)).exit_code

    async def _exit_code_of(self, pid: str) -> int | None:
        """Return the exit code of a job that has ended; None if it cannot be known."""
        waited = await self._run(f"wait {pid}", STARTUP_S)
        # After an `exit` in the session the job is no child of the shell, so its exit code cannot be known.
        unknown = waited.timed_out or (waited.exit_code == 127 and b"child" in waited.stdout)
        return None if unknown else waited.exit_code
