"""What benchmarks of the loop share: an agent with slow tools, sandboxes that do nothing, a sampler of the loop, and
functions that make runs and look at them.

`install` makes them plugins without pip: it writes what an installed package has into a folder for `PYTHONPATH`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import Field

from ale.messages import Message, ToolSpec
from ale.specs.driver import Driver
from ale.specs.events import Observer, hookimpl
from ale.specs.sandbox import AGENT, ExecResult, Sandbox, SandboxInfo, SandboxProvider, SandboxSpec
from ale.specs.scaffold import ModelSession
from ale.store.run_store import RunStore
from ale.task import Task
from ale_iflow import IFlow

NUMBERS = itertools.count()
ALE = Path(sys.executable).with_name("ale")
METADATA = "Metadata-Version: 2.1\nName: ale-bench-plugins\nVersion: 0\n"
ENTRY_POINTS = """[ale.scaffold]
waiting = bench_plugins:WaitingAgent
[ale.sandbox]
nothing = bench_plugins:Nothing
[ale.hooks]
sampler = bench_plugins:Sampler
"""
LOOP = ("ale_train/rl/", "ale_train/pipeline/", "ale/rollout/scheduler.py", "ale/rollout/filters.py", "ale/store/")
"""Where the loop's own code is; that of an episode (session, agent, sandbox, reward) and of the drivers is not."""


class WaitingAgent(IFlow):
    """iFlow with slow tools."""

    class Config(IFlow.Config):
        """Settings of the scaffold `waiting`."""

        mean_s: float = Field(0.5, ge=0, description="Mean seconds of a tool.")
        cv: float = Field(1.0, gt=0, description="Standard deviation of these seconds over their mean.")

    config: Config

    async def run(self, task: Task, sandbox: Sandbox, session: ModelSession) -> str:
        spread = math.sqrt(math.log(1 + self.config.cv**2))
        middle = math.log(self.config.mean_s) - spread**2 / 2

        def seconds() -> float:
            return random.lognormvariate(middle, spread)

        return await super().run(task, sandbox, _Waiting(session, seconds))  # type: ignore[arg-type]


class _Waiting:
    """A session that waits before each call but the first: the tool of the call before has taken so long."""

    def __init__(self, session: ModelSession, seconds: Any) -> None:
        self._session, self._seconds, self._calls = session, seconds, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    async def chat(self, messages: list[Message], tools: tuple[ToolSpec, ...]) -> Any:
        if self._calls:
            await asyncio.sleep(self._seconds())
        self._calls += 1
        return await self._session.chat(messages, tools)


class NoSandbox(Sandbox):
    """Every command succeeds at once."""

    def __init__(self, spec: SandboxSpec) -> None:
        self.id, self.spec = f"nothing-{next(NUMBERS)}", spec

    async def exec(self, command: str, **options: Any) -> ExecResult:
        return ExecResult(0, b"", b"", 0.0)

    async def upload(self, files: Mapping[str, bytes], *, user: str = AGENT, mode: int = 0o644) -> None:
        pass

    async def download(self, path: str, *, max_bytes: int = 1 << 28) -> bytes:
        raise FileNotFoundError(path)

    async def kill_agent_processes(self) -> None:
        pass

    async def stop(self) -> None:
        pass


class Nothing(Driver, SandboxProvider):
    """Starts sandboxes that do nothing."""

    api_version = ">=1.0,<1.2"
    capabilities = frozenset({"users", "network_none", "network_full"})

    async def start_sandbox(self, spec: SandboxSpec) -> Sandbox:
        return NoSandbox(spec)

    async def list(self) -> list[SandboxInfo]:
        return []

    async def remove(self, sandbox_id: str) -> None:
        pass


class Sampler(Observer):
    """Looks every two milliseconds, from the first step of `rl` on, what the main thread does, and writes
    `samples.json` into the run folder: how often it was in the loop's own code, elsewhere, or idle."""

    api_version = ">=1.0,<1.2"

    @hookimpl
    def ale_run_started(self, run_dir: Path) -> None:
        """Begin."""
        self._counts: Counter[str] = Counter()
        self._folder, self._begun, self._over = run_dir, threading.Event(), threading.Event()
        threading.Thread(target=self._look, args=(threading.main_thread().ident,), daemon=True).start()

    @hookimpl
    def ale_step_finished(self, stage: str, step: int, metrics: Mapping[str, float]) -> None:
        """Look from now on, or no more."""
        if stage == "rl" and step == 1:
            self._begun.set()

    @hookimpl
    def ale_run_finished(self, summary: Mapping[str, Any]) -> None:
        """End."""
        self._over.set()
        (self._folder / "samples.json").write_text(json.dumps(self._counts))

    def _look(self, main: int) -> None:
        self._begun.wait()
        while not self._over.wait(0.002):
            self._counts[self._place(sys._current_frames().get(main))] += 1

    @staticmethod
    def _place(frame: FrameType | None) -> str:
        if frame is not None and frame.f_code.co_name == "select":
            return "idle"
        while frame is not None:
            path = frame.f_code.co_filename
            if "/src/ale" in path:
                inner = path.partition("/src/")[2]
                return "loop" if inner.startswith(LOOP) else f"other: {inner}"
            frame = frame.f_back
        return "other: asyncio"


def run_example(folder: Path, arguments: list[str], path: str) -> None:
    """Run the quickstart's file into a folder, with these arguments and this `PYTHONPATH`."""
    command = [str(ALE), "run", "examples/quickstart.yaml", "--out", str(folder), *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path})


def steps_done(folder: Path) -> int:
    """Return how many RL steps a run has made; -1 before it has a database."""
    if not (folder / "run.db").exists():
        return -1
    with RunStore.open(folder) as store:
        return int(store.rows("SELECT COALESCE(MAX(step), 0) FROM metrics WHERE stage = 'rl'")[0][0])


def install(folder: Path) -> str:
    """Make them plugins; returns the value for `PYTHONPATH`."""
    info = folder / "ale_bench_plugins-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return f"{folder}:{Path(__file__).parent}"
