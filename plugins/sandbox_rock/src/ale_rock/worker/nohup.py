"""Recognizes what ROCK's client sends to run a job in the background, so that the job's exit code can be reported.

1. `arun(mode="nohup")` starts a job with one line (`find_job`) that ends in `disown`, after which no shell knows how
   the job ends. The session leaves that word out: its shell then keeps the job's exit code, and `wait PID` returns it.
2. The client asks `kill -0 PID` every few seconds, takes its failure for the job's success, and reads the job's output
   with `cat FILE` or `head -c N FILE`.
3. So there are two places where a failed job can be reported. If it fails within `START_WAIT_S`, it is the answer to
   the start, whose exit code the client passes on. Later it is the answer to the reading of its output, which the
   client reports as exit code 1 with our sentence. With `ignore_output` the client reads no output, and a late failure
   cannot be reported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

START_WAIT_S = 1.0
"""How long the answer to a job's start waits for the job, to report a job that fails at once. Only the pauses between
two looks are counted: on a slow machine looks take longer, and so does the job."""
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
    failed: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Output file -> process id and exit code, until it has been reported."""

    def end(self, pid: str, exit_code: int) -> None:
        """Note that a job has ended."""
        file = self.running.pop(pid)
        if exit_code:
            self.failed[file] = pid, exit_code

    def report(self, command: str) -> str:
        """Return the sentence about a failed job whose output `command` reads, once; "" if there is none."""
        match = READ.fullmatch(command.strip())
        failure = self.failed.pop(match["file"], None) if match else None
        return sentence(*failure) if failure else ""


def sentence(pid: str, exit_code: int) -> str:
    """Say how a job ended."""
    return f"The background job {pid} ended with exit code {exit_code}."
