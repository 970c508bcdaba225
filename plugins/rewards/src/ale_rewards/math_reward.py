"""The reward `math`: 1 if the reply's answer equals the right one as mathematics, by the library math-verify, else 0.

Comparisons run in processes (`math_worker`), each one at a time. A process that does not answer in time is ended, and
the next comparison starts a new one: the reply that caused it counts as wrong. If it was the right answer that cannot
be read, the task is broken.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from ale.errors import PluginError, TaskError
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.reward import GradedSandbox, Reward
from ale.task import Task
from ale.trajectory import Score, Trajectory
from ale_rewards import math_worker
from ale_rewards.conversation import read_conversation
from ale_rewards.task_column import Column, as_text

START_S = 60.0
"""Seconds that a process may take to import math-verify."""
STEPS = 2
"""Steps of a request that have the time limit each: to read an answer, and to compare."""
LINE_BYTES = 1 << 24


class MathReward(Driver, Reward):
    """1 if the reply's answer equals the right one as mathematics (math-verify), else 0."""

    api_version = ">=1.0,<1.2"

    class Config(PluginConfig):
        """Settings of the reward `math`."""

        answer: str = Field("answer", description="Column with the right answer: a number or LaTeX.")
        timeout_s: int = Field(5, gt=0, description="Seconds to read an answer, and again to compare the two.")
        processes: int = Field(2, gt=0, description="Comparisons at the same time, each in a process of its own.")

        @model_validator(mode="after")
        def _library_is_installed(self) -> MathReward.Config:
            if importlib.util.find_spec("math_verify") is None:
                raise ValueError("this reward needs math-verify: pip install 'ale-plugin-rewards[math]'")
            return self

    config: Config

    def __init__(self, config: Config, context: DriverContext) -> None:
        super().__init__(config, context)
        self._answers = Column("reward.answer", config.answer)
        self._idle: asyncio.LifoQueue[Comparer] = asyncio.LifoQueue()
        self._all: list[Comparer] = []

    @classmethod
    def uses_sandbox(cls, config: Config) -> bool:
        """It reads the reply alone."""
        return False

    async def start(self) -> None:
        """Prepare the processes; each starts with its first comparison."""
        self._all = [Comparer(self.config.timeout_s) for _ in range(self.config.processes)]
        for comparer in self._all:
            self._idle.put_nowait(comparer)

    async def close(self) -> None:
        """End the processes."""
        for comparer in self._all:
            await comparer.stop()

    @classmethod
    def objection(cls, config: Config, task: Task) -> str:
        """Return whether the task lacks the column."""
        return Column("reward.answer", config.answer).objection(task)

    async def score(self, task: Task, sandbox: GradedSandbox, trajectory: Trajectory) -> Score:
        """Raises `TaskError` if the right answer cannot be read."""
        started = time.monotonic()
        right, reply = as_text(self._answers.read(task)), read_conversation(task, trajectory).reply
        comparer = await self._idle.get()
        try:
            score = await comparer.compare(task, right, reply)
        finally:
            self._idle.put_nowait(comparer)
        return replace(score, seconds=time.monotonic() - started)


class Comparer:
    """One process, which is started when it is needed and ended when it does not answer."""

    def __init__(self, timeout_s: int) -> None:
        self._timeout_s = timeout_s
        self._process: asyncio.subprocess.Process | None = None

    async def compare(self, task: Task, right: str, reply: str) -> Score:
        """Compare two answers. Raises `TaskError`, `PluginError`."""
        finished = False
        try:
            if self._process is not None and self._process.returncode is not None:
                await self.stop()
            kept, asked = self._process, {"right": right, "reply": reply, "timeout_s": self._timeout_s}
            process = kept or await self._start()
            read = await self._ask(process, asked)
            if read is None and kept is not None and self._has_ended(kept):
                # It ended before this request or because of it; a new process shows which.
                await self.stop()
                process = await self._start()
                read = await self._ask(process, asked)
            if read is None or not read["readable"]:
                why = "reading it takes too long" if read is None else read["why"]
                finished = read is not None
                raise TaskError(f"Task {task.id}: its answer {right!r:.200} cannot be read as mathematics: {why}.")
            found = await self._answer(process, STEPS * self._timeout_s + 2)
            finished = found is not None
        finally:
            if not finished:
                await self.stop()
        if found is None:
            return Score(0.0, False, f"The answer could not be compared within {STEPS * self._timeout_s} s.")
        passed = bool(found["equal"])
        return Score(float(passed), passed, f"{found['said']!r}; right is {right!r:.200}. {found['why']}".strip())

    async def stop(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        pipe, program = asyncio.subprocess.PIPE, Path(math_worker.__file__)
        # It gets no environment: it needs none, and an expression that fools the library finds no secrets in it.
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", str(program), stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL,
            env={}, start_new_session=True, limit=LINE_BYTES,
        )  # fmt: skip
        self._process = process
        if await self._answer(process, START_S) is None:
            raise PluginError(
                "The reward math could not start its process; try `python -c 'import math_verify'` with "
                f"{sys.executable}."
            )
        return process

    async def _ask(self, process: asyncio.subprocess.Process, asked: dict[str, Any]) -> dict[str, Any] | None:
        """Ask for a comparison, and return the first line of the answer; None as `_answer` does."""
        assert process.stdin is not None
        with suppress(ConnectionError):  # it has ended, which the answer shows
            process.stdin.write(json.dumps(asked).encode() + b"\n")
            await process.stdin.drain()
        return await self._answer(process, self._timeout_s + 2)

    @staticmethod
    def _has_ended(process: asyncio.subprocess.Process) -> bool:
        assert process.stdout is not None
        return process.stdout.at_eof()

    async def _answer(self, process: asyncio.subprocess.Process, timeout_s: float) -> dict[str, Any] | None:
        """Return the next line of the process, None if it does not come in time or the process has ended."""
        assert process.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                line = await process.stdout.readline()
        except TimeoutError:
            return None
        answer: dict[str, Any] | None = json.loads(line) if line.endswith(b"\n") else None
        return answer
