"""Recognizes what ROCK's client sends to run a job in the background, and keeps the jobs' exit codes.

1. `arun(mode="nohup")` starts a job with one line (`find_job`) that ends in `disown`, after which no shell knows how
   the job ends. The session leaves that word out: its shell then keeps the job's exit code, and `wait PID` returns it.
2. The client asks `kill -0 PID` every few seconds, takes its failure for the job's success, and reads the job's output
   with `cat FILE` or `head -c N FILE`.
3. By default these answers are those of ROCK's own server, whatever the job's exit code is: programs that are written
   for ROCK rely on it. The exit code is in a field of ours, `job_exit_code`, of the answer to the start if the job has
   ended by then (the answer waits up to `START_WAIT_S` for that), and of the answer that reads the output.
4. With the setting or header `job_exit_codes` a failed job also fails these answers: the start's, whose exit code the
   client passes on, or the reading's, which the client reports as exit code 1 with our sentence. With `ignore_output`
   the client reads no output, and a late failure cannot be reported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

START_WAIT_S = 1.0
"""How long the answer to a job's start waits for it, so that a short job has ended when the client first asks. Only the
pauses between two looks are counted: on a slow machine looks take longer, and so does the job."""
STARTS, INPUT, ENDS = "nohup ", " < /dev/null > ", " 2>&1 & echo PIDSTART${!}PIDEND"
"""Parts of a job's line, looked for one by one: a pattern for all of it takes quadratic time on some texts."""
PID = re.compile(r"PIDSTART(\d+)PIDEND")
ALIVE = re.compile(r"\s*kill -0 (\d+)\s*")
RUNS = "kill -0 {pid} && (read -r line </proc/{pid}/stat; case ${{line##*) }} in [ZX]*) exit 1;; esac)"
"""Tests whether a job runs. `kill -0` also finds a job that has ended, until its shell has collected it (a zombie)."""
READ = re.compile(r"(?:cat|head -c \d+) (?P<file>.+)", re.DOTALL)


def find_job(command: str) -> tuple[str, str] | None:
    """Return the line that starts a job, without its `disown`, and the job's output file; None if this
    command starts no such job."""
    text = command.rstrip()
    line = text.removesuffix("disown").removesuffix(" ").removesuffix(";").removesuffix(" ")
    if not (text.endswith("disown") and line.startswith(STARTS) and line.endswith(ENDS)):
        return None
    before, _, file = line.removesuffix(ENDS).rpartition(INPUT)
    return (line, file) if before and file else None


@dataclass(slots=True)
class Jobs:
    """The background jobs of one session."""

    running: dict[str, str] = field(default_factory=dict)
    """Process id -> output file."""
    ended: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Output file -> process id and exit code, until the output is read."""

    def begin(self, pid: str, file: str) -> None:
        """Note that a job has started."""
        self.running[pid] = file
        self.ended.pop(file, None)

    def end(self, pid: str, exit_code: int | None) -> None:
        """Note that a job has ended; the exit code is None if nobody knows it."""
        file = self.running.pop(pid)
        if exit_code is not None:
            self.ended[file] = pid, exit_code

    def report(self, command: str) -> tuple[str, int] | None:
        """Return the process id and the exit code of the ended job whose output `command` reads, once."""
        match = READ.fullmatch(command.strip())
        return self.ended.pop(match["file"], None) if match else None


def sentence(pid: str, exit_code: int) -> str:
    """Say how a job ended."""
    return f"The background job {pid} ended with exit code {exit_code}."
