"""The audit log: who did what in a run, one JSON object in each line, appended and never changed.

1. A line is one `write` to a file opened for appending, so that a kill leaves whole lines.
2. The agent's command is logged *before* it runs (`exec_requested`); where that fails the command is refused, so that
   no command runs without a record.
3. Every line holds `time` (UTC), `run` and `event`; then the ids that tie lines together: `episode` (also the id of the
   trajectory and of the model session), `sandbox`, `task`, `chunk`.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from ale.config.references import redact_json
from ale.errors import ConfigError
from ale.messages import Message
from ale.specs.driver import DriverContext, PluginConfig
from ale.specs.events import ExecBy, Observer, hookimpl
from ale.specs.sandbox import ExecResult
from ale.store.output_files import make_folder
from ale.task import Task
from ale.trajectory import Chunk, Trajectory

__all__ = ["AuditLog"]

UNREDACTED_KEYS = frozenset(
    {"time", "run", "event", "episode", "sandbox", "by", "role", "finish_reason", "ended_by", "status"}
)
"""Keys whose values are ids or fixed words; in all other values the run's secrets are replaced."""


class AuditLogConfig(PluginConfig):
    """Settings of the observer `audit_log`."""

    path: Path | None = Field(None, description="File to append to; null: 'audit.jsonl' in the run folder.")
    max_output_chars: int = Field(
        4000,
        ge=0,
        description="Characters kept of a command's stdout, and of its stderr. Commands and stdin are kept whole.",
    )
    fsync: bool = Field(
        False, description="Wait for the disk after each line. Lines then survive a power cut, but it costs time."
    )


class AuditLog(Observer):
    """Records who did what in a run, one line of JSON each, before the agent's command runs."""

    api_version = ">=1.0,<1.2"
    Config: ClassVar[type[PluginConfig]] = AuditLogConfig
    config: AuditLogConfig

    def __init__(self, config: AuditLogConfig, context: DriverContext) -> None:
        super().__init__(config, context)
        self._file: int | None = None

    @property
    def path(self) -> Path:
        """The file. Raises `ConfigError` outside a run where no path is given."""
        if self.config.path is not None:
            return self.config.path
        if self.context.run_dir is None:
            raise ConfigError("The observer 'audit_log' has no run folder to write to; give it a 'path'.")
        return self.context.run_dir / "audit.jsonl"

    async def start(self) -> None:
        """Open the file at the start where a path is given. Raises `ConfigError` where it cannot be opened."""
        if self.config.path is not None:
            self._open()

    async def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        if self._file is None:
            make_folder(self.path.parent, "folder of the audit log")
            try:
                self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise ConfigError(f"The audit log {self.path} cannot be opened: {error.strerror}.") from error
        return self._file

    def _write(self, event: str, **fields: Any) -> None:
        line = {"time": datetime.now(UTC).isoformat(), "run": self.context.run_id, "event": event, **fields}
        text = redact_json(
            json.dumps(line, ensure_ascii=False, default=str), self.context.channel.redact, UNREDACTED_KEYS
        )
        data = text.encode("utf-8", "backslashreplace") + b"\n"
        file = self._open()
        if os.write(file, data) != len(data):
            raise OSError(f"the disk took only a part of a line of {self.path}")
        if self.config.fsync:
            os.fsync(file)

    @hookimpl
    def ale_run_started(self, config: dict[str, Any]) -> None:
        """`config` holds references in place of secrets."""
        self._write("run_started", config=config)

    @hookimpl
    def ale_run_finished(self, summary: dict[str, Any]) -> None:
        """How the run ended."""
        self._write("run_finished", status=summary.get("status"), error=summary.get("error"))

    @hookimpl
    def ale_sandbox_started(self, sandbox_id: str, episode_id: str, task: Task) -> None:
        """Ties the ids of sandbox, episode and task together."""
        self._write("sandbox_started", episode=episode_id, sandbox=sandbox_id, task=task.id)

    @hookimpl
    def ale_before_exec(self, sandbox_id: str, episode_id: str, task: Task, command: str, stdin: bytes) -> None:
        """Log the command; where this raises because it cannot write, the run refuses the command."""
        self._write(
            "exec_requested",
            episode=episode_id,
            sandbox=sandbox_id,
            task=task.id,
            by="agent",
            command=command,
            stdin=_decode_stdin(stdin),
        )

    @hookimpl
    def ale_exec_started(
        self, sandbox_id: str, episode_id: str, task: Task, by: ExecBy, command: str, stdin: bytes
    ) -> None:
        """Log that the sandbox gets the command; a reward's command has no `exec_requested` before it."""
        self._write(
            "exec_started",
            episode=episode_id,
            sandbox=sandbox_id,
            task=task.id,
            by=by,
            command=command,
            stdin=_decode_stdin(stdin),
        )

    @hookimpl
    def ale_exec_finished(
        self,
        sandbox_id: str,
        episode_id: str,
        task: Task,
        by: ExecBy,
        command: str,
        result: ExecResult | None,
        error: str | None,
    ) -> None:
        """The result of the command."""
        outcome: dict[str, Any] = {"error": error}
        if result is not None:
            outcome = {
                "exit_code": result.exit_code,
                "seconds": round(result.duration_s, 6),
                "timed_out": result.timed_out,
                "stdout": self._shorten_output(result.stdout),
                "stderr": self._shorten_output(result.stderr),
            }
        self._write(
            "exec_finished", episode=episode_id, sandbox=sandbox_id, task=task.id, by=by, command=command, **outcome
        )

    @hookimpl
    def ale_model_called(self, session_id: str, chunk: Chunk, message: Message) -> None:
        """The model's answer, and the policy versions that sampled it."""
        self._write(
            "model_called",
            episode=session_id,
            chunk=chunk.index,
            sampled=chunk.sampled,
            tokens=len(chunk),
            policy_versions=sorted(set(chunk.versions)),
            finish_reason=chunk.finish_reason,
            message=message.to_openai(),
            problem=chunk.error.message if chunk.error else None,
        )

    @hookimpl
    def ale_trajectory_finished(self, trajectory: Trajectory) -> None:
        """How the episode ended, and its reward."""
        self._write(
            "trajectory_finished",
            episode=trajectory.id,
            task=trajectory.task_id,
            ended_by=trajectory.ended_by,
            passed=trajectory.passed,
            reward=trajectory.reward.value if trajectory.reward else None,
            rejected=trajectory.rejected,
        )

    def _shorten_output(self, output: bytes) -> str:
        text = output.decode("utf-8", "replace")
        left_out = len(text) - self.config.max_output_chars
        return text if left_out <= 0 else f"{text[: self.config.max_output_chars]}... ({left_out} characters left out)"


def _decode_stdin(stdin: bytes) -> str:
    """The whole standard input of a command, since it may be a program."""
    return stdin.decode("utf-8", "backslashreplace")
