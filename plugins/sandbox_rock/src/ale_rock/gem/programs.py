"""Environments that a program in the sandbox plays: those of gem, and classes with gem's `reset` and `step`.

1. `make` writes `program.py` into the sandbox and starts it there.
2. `reset` and `step` are commands in that sandbox, which hand a request to the program.
3. An environment that fails or is late is reported to the caller as a sentence; its sandbox stays until `close`.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic

from ale.errors import SandboxError, TaskError
from ale.specs.sandbox import SandboxSpec
from ale_rock.envhub.models import EnvironmentPlan
from ale_rock.gem.environments import ENV_LABEL, Action, Caller, Sandboxes

PROGRAM = Path(__file__).with_name("program.py")
FOLDER = "/tmp/.ale-gem"
PYTHON_LABEL = "ale.gem.python"
MAKE_S, STEP_S, FIRST_CONNECTION_S = 120.0, 280.0, 10
"""ROCK's client waits for 300 seconds."""


class ProgramPlayer(Generic[Caller]):
    """The `Player` of these environments."""

    def __init__(self, sandboxes: Sandboxes[Caller]) -> None:
        self._sandboxes = sandboxes

    async def make(self, plan: EnvironmentPlan, spec: SandboxSpec, caller: Caller) -> str:
        """Raises `TaskError` if the environment cannot be made, `SandboxError`."""
        labels = {**spec.labels, PYTHON_LABEL: plan.python}
        sandbox_id = await self._sandboxes.start(spec.model_copy(update={"labels": labels}), caller)
        python, settings = shlex.quote(plan.python), shlex.quote(json.dumps(dict(plan.settings)))
        serve = f"{python} -u {FOLDER}/program.py serve {FOLDER} {shlex.quote(plan.env_id)} {settings}"
        write = f"mkdir -p {FOLDER} && cat >{FOLDER}/program.py"
        shared = () if plan.separate else plan.agents
        try:
            await self._run(sandbox_id, write, caller, PROGRAM.read_bytes(), MAKE_S, "write its program")
            if plan.start_up:
                await self._run(sandbox_id, plan.start_up, caller, b"", MAKE_S, "run its start-up command")
            start = f"nohup {serve} </dev/null >{FOLDER}/log 2>&1 &"
            await self._run(sandbox_id, start, caller, b"", MAKE_S, "start its program")
            await self._ask(sandbox_id, labels, caller, MAKE_S, op="made", agents=shared)
        except BaseException:
            await asyncio.shield(self._sandboxes.remove(sandbox_id, caller))
            raise
        return sandbox_id

    async def reset(
        self, sandbox_id: str, labels: Mapping[str, str], seed: int | None, caller: Caller
    ) -> dict[str, Any]:
        found: dict[str, Any] = await self._ask(sandbox_id, labels, caller, STEP_S, op="reset", seed=seed)
        return found

    async def step(self, sandbox_id: str, labels: Mapping[str, str], action: Action, caller: Caller) -> dict[str, Any]:
        found: dict[str, Any] = await self._ask(sandbox_id, labels, caller, STEP_S, op="step", action=action)
        return found

    def forget(self, sandbox_id: str) -> None:
        """The program ends with its sandbox."""

    async def _ask(
        self, sandbox_id: str, labels: Mapping[str, str], caller: Caller, timeout_s: float, **request: Any
    ) -> Any:
        python = shlex.quote(labels.get(PYTHON_LABEL, "python3"))
        command = f"{python} -I -S {FOLDER}/program.py ask {FOLDER} {FIRST_CONNECTION_S}"
        asked = f"answer '{request['op']}'"
        text = await self._run(sandbox_id, command, caller, json.dumps(request).encode(), timeout_s, asked)
        try:
            answer = json.loads(text)
            understood = isinstance(answer, dict) and (
                "error" in answer or isinstance(answer.get("result"), dict | bool)
            )
        except (ValueError, RecursionError):
            understood = False
        if not understood:  # whatever runs in the sandbox could have replaced the program
            raise SandboxError(
                f"The program in the sandbox {sandbox_id} could not {asked}: it wrote no answer of ours."
            )
        if "error" in answer:
            raise TaskError(f"The environment {labels[ENV_LABEL]} could not {asked}: {answer['error']}.")
        return answer["result"]

    async def _run(
        self, sandbox_id: str, command: str, caller: Caller, stdin: bytes, timeout_s: float, what: str
    ) -> bytes:
        """Run a command of ours in the sandbox. Raises `SandboxError` with its last words if it fails."""
        done = await self._sandboxes.open(sandbox_id, caller).exec(command, stdin=stdin, timeout_s=timeout_s)
        if done.exit_code == 0 and not done.truncated:
            return done.stdout
        words = f"it took longer than {timeout_s:g} s" if done.timed_out else done.output.strip()[-500:]
        reason = words or f"its command ended with the exit code {done.exit_code}"
        raise SandboxError(f"The environment in the sandbox {sandbox_id} could not {what}: {reason}.")
