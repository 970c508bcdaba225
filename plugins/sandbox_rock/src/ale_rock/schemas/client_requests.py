"""The bodies that a ROCK client sends. Unknown fields are ignored, as ROCK's own server does."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints

from ale.specs.sandbox import NetworkMode
from ale_rock.schemas.common import Name, SandboxId, Size, Spec


class StartRequest(BaseModel):
    """`/start_async`. The fields after `disk` are ALE's; a client that cannot send them has headers for some."""

    image: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=512)] | None = None
    image_os: str = "linux"
    auto_clear_time_minutes: float | None = Field(None, ge=0, le=1e6, description="Minutes without a request; 0: none.")
    auto_clear_time: float | None = Field(None, ge=0, le=1e6, description="The older name of the same.")
    startup_timeout: float | None = Field(None, gt=0, le=86_400, description="Seconds, the queue included.")
    memory: Size = "8g"
    cpus: float = Field(2, gt=0, le=4096)
    limit_cpus: float | None = Field(None, gt=0, le=4096)
    num_gpus: float | None = Field(None, ge=0, le=1024)
    accelerator_type: str | None = None
    registry_username: str | None = Field(None, repr=False)
    registry_password: str | None = Field(None, repr=False)
    use_kata_runtime: bool = False
    sandbox_id: SandboxId | None = None
    auto_archive_seconds: int | None = Field(None, ge=0, le=10**9, description="Archive so long after it stopped.")
    auto_delete_seconds: int | None = Field(None, ge=0, le=10**9, description="Delete so long after it stopped.")
    disk: Size | None = None
    network: NetworkMode | None = Field(None, description="Null: header `X-Network`, or the service's default.")
    allow: tuple[str, ...] = Field((), description="Hosts of the network mode `allow`; or header `X-Allow`.")
    env: dict[str, str] = Field(default_factory=dict, repr=False)
    lifetime_s: float | None = Field(None, gt=0, le=1e9, description="It is stopped after so many seconds.")
    priority: int | None = Field(None, ge=-100, le=100, description="Higher is earlier; or header `X-Priority`.")
    spec: Spec | None = Field(
        None, repr=False, description="The whole spec, from ALE's own provider: it replaces image, resources and env."
    )


class SandboxRef(BaseModel):
    """`/stop`, `/delete`, `/restart`, and the part that all requests about one sandbox share."""

    sandbox_id: SandboxId


class CreateSessionRequest(SandboxRef):
    """`/create_session`."""

    session_type: Literal["bash"] = "bash"
    session: Name = "default"
    startup_source: list[str] = []
    env_enable: bool = False
    env: dict[str, str] | None = Field(None, repr=False)
    remote_user: str | None = None


class RunInSessionRequest(SandboxRef):
    """`/run_in_session`."""

    action_type: Literal["bash"] = "bash"
    session: Name = "default"
    command: str
    check: Literal["silent", "raise", "ignore"] = "raise"
    timeout: float | None = Field(None, gt=0, description="Seconds.")
    job_exit_codes: bool = Field(
        False,
        description="Whether a background job that failed fails the answer that reports its end; or header "
        "`X-Job-Exit-Codes`, or the service's setting.",
    )


class CloseSessionRequest(SandboxRef):
    """`/close_session`."""

    session_type: Literal["bash"] = "bash"
    session: Name = "default"


class ExecuteRequest(SandboxRef):
    """`/execute`: a list runs without a shell."""

    command: str | list[str]
    timeout: float | None = Field(1200, gt=0, description="Seconds.")
    cwd: str | None = None
    env: dict[str, str] | None = Field(None, repr=False)


class ReadFileRequest(SandboxRef):
    """`/read_file`."""

    path: str
    encoding: str | None = None
    errors: str | None = None


class WriteFileRequest(SandboxRef):
    """`/write_file`."""

    path: str
    content: str = Field(repr=False)


class CommitRequest(SandboxRef):
    """`/commit`."""

    image_tag: Name
    username: str = ""
    password: str = Field("", repr=False)


class BatchStatusRequest(BaseModel):
    """`/sandboxes/batch`."""

    sandbox_ids: list[SandboxId] = Field(max_length=2000)


class BatchStartRequest(BaseModel):
    """`/start_batch`, which is ALE's own: each entry is a `StartRequest`, and is judged by itself."""

    requests: list[dict[str, Any]] = Field(min_length=1, max_length=1000, repr=False)


class WarmupRequest(BaseModel):
    """`/warmup/tasks`."""

    image: Name
