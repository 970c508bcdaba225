"""The results in the envelopes that a ROCK client gets."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from ale_rock.schemas.common import State


class StartResult(BaseModel):
    """The result of `/start_async` and `/restart`."""

    sandbox_id: str
    host_name: str | None = None
    host_ip: str | None = None
    cpus: float | None = None
    memory: str | None = None
    disk: str | None = None


class Phase(BaseModel):
    """How far one phase of a start is; a client gives up at `failed` and `timeout`."""

    status: Literal["waiting", "running", "success", "failed", "timeout"]
    message: str = ""


class StateChange(BaseModel):
    """An entry of a sandbox's history."""

    from_state: str
    to_state: str
    event: str
    timestamp: str


class StatusResult(BaseModel):
    """The result of `/get_status`. `status` is never null: the client would crash."""

    sandbox_id: str
    state: State
    is_alive: bool
    status: dict[Literal["image_pull", "docker_run"], Phase]
    message: str | None = None
    host_name: str | None = None
    host_ip: str | None = None
    image: str | None = None
    cpus: float | None = None
    memory: str | None = None
    disk: str | None = None
    num_gpus: float | None = None
    user_id: str | None = None
    experiment_id: str | None = None
    namespace: str | None = None
    port_mapping: dict[str, int] = {}
    create_time: str | None = None
    start_time: str | None = None
    stop_time: str | None = None
    delete_time: str | None = None
    archive_time: str | None = None
    auto_stop_time: str | None = None
    auto_archive_time: str | None = None
    auto_delete_time: str | None = None
    state_history: list[StateChange] = []


class CommitResult(BaseModel):
    """The result of `/commit`."""

    sandbox_id: str
    image_tag: str
    phase: Literal["RUNNING", "SUCCEEDED", "FAILED"]
    started_at: str
    completed_at: str | None = None
    exit_code: int | None = None
    failed_stage: str | None = None
    error_code: str | None = None
    error_message: str | None = None


class SessionResult(BaseModel):
    """The result of `/create_session` and `/close_session`."""

    output: str = ""
    session_type: Literal["bash"] = "bash"


class RunResult(BaseModel):
    """The result of `/run_in_session`."""

    session_type: Literal["bash"] = "bash"
    output: str = ""
    exit_code: int | None = None
    failure_reason: str = ""
    expect_string: str = ""
    job_exit_code: int | None = Field(None, description="ALE's own: how the background job that this is about ended.")


class ExecuteResult(BaseModel):
    """The result of `/execute`."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None


class ReadFileResult(BaseModel):
    """The result of `/read_file`."""

    content: str = ""


class WriteFileResult(BaseModel):
    """The result of `/write_file`."""

    success: bool = True
    message: str = ""


class UploadResult(BaseModel):
    """The result of `/upload`."""

    success: bool = True
    message: str = ""
    file_name: str = ""
