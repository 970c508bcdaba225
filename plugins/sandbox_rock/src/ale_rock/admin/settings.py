"""Settings of an admin: where its state lies, who may call it, and which starts it admits."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from ale.specs.sandbox import NetworkMode
from ale_rock.admin.object_storage import ObjectStorage

Role = Literal["admin", "user", "worker"]


@lru_cache(64)
def is_loopback(host: str) -> bool:
    """Whether an address or a name to listen at is this machine's own; asked at each request."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Token(BaseModel):
    """A secret that a caller shows, and what it may do with it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token: SecretStr = Field(min_length=16)
    role: Role = Field(description="admin: all sandboxes; user: sandboxes; worker: what workers report.")
    user: str | None = Field(
        None, min_length=1, max_length=256, description="Whose sandboxes it sees; null: those of every user."
    )
    priority: int = Field(
        0, ge=-100, le=100, description="Highest priority that a start of this user may have; an admin's has any."
    )
    namespaces: tuple[str, ...] = Field(
        (),
        description="Namespaces in which this user starts sandboxes, the first by default. Once a token names "
        "some, tokens of the role user that name none start theirs without a namespace.",
    )


class Settings(BaseModel):
    """Settings of `ale rock serve`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    database: str = Field(
        "sqlite:///ale-rock.sqlite", description="SQLAlchemy URL of the state: SQLite, or postgresql+psycopg://..."
    )
    host: str = Field("127.0.0.1", description="Address that the server listens at.")
    tokens: tuple[Token, ...] = Field((), description="Who may call. Without any, only a loopback address is served.")
    requests_per_s: float | None = Field(None, gt=0, description="Requests a second of one user token; null: no limit.")
    burst: int = Field(100, gt=0, description="How many requests of a token may come at once.")

    worker_timeout_s: float = Field(5.0, gt=0, description="A worker that is silent for so long is lost.")
    reconcile_s: float = Field(60.0, gt=0, description="How often a worker is asked which sandboxes it holds.")
    starts_per_worker: int = Field(16, gt=0, description="Most sandboxes that start at once on one worker.")
    start_attempts: int = Field(3, gt=0, description="Workers that are tried, if a start fails by the worker's fault.")
    cpu_overcommit: float = Field(8.0, gt=0, description="CPUs promised for each that a worker has.")
    memory_overcommit: float = Field(4.0, gt=0, description="Memory promised for each byte that a worker has.")
    disk_overcommit: float = Field(16.0, gt=0, description="Disk promised for each byte that a worker has.")
    memory_full: float = Field(0.9, gt=0, le=1, description="Share of memory in use from which a worker is full.")
    disk_free_bytes: int = Field(
        1 << 30, ge=0, description="A worker whose disk has less free than this gets nothing until it has more again."
    )

    queue_limit: int = Field(10_000, ge=0, description="Most sandboxes that wait; more are refused.")
    sandboxes_per_user: int | None = Field(None, gt=0, description="Most live sandboxes of one user; null: no limit.")
    user_quotas: dict[str, int] = Field(default_factory=dict, description="The same for the users named here.")
    namespace_shares: dict[str, float] = Field(
        default_factory=dict, description="Weight of a namespace in the queue; 1 for those not named."
    )
    hold_s: float = Field(
        30.0, ge=0, description="For one that waits longer, a worker on which it fits is kept free of others."
    )

    startup_timeout_s: float = Field(180.0, gt=0, description="Time for queue and start, if the request names none.")
    answer_within_s: float = Field(
        240.0, gt=0, description="A start that takes longer is answered as pending; ROCK's client gives up after 300 s."
    )
    auto_clear_minutes: float = Field(
        60.0,
        ge=0,
        description="A sandbox without a request for so long is stopped, if its request names none; 0: never.",
    )
    lifetime_s: float | None = Field(None, gt=0, description="Longest life of any sandbox.")
    keep_stopped: bool = Field(
        False, description="Keep the files of every sandbox that is stopped, so that it can be started again."
    )
    job_exit_codes: bool = Field(
        False,
        description="Whether a background job that failed is an error for ROCK's client, which else takes every job "
        "for a success; a request decides for itself by the header `X-Job-Exit-Codes: true` or `false`.",
    )
    disk_limits: bool = Field(False, description="Whether `disk` of a ROCK client is a limit too, not only room.")
    network: NetworkMode = Field("none", description="Network of a sandbox whose request names none.")
    networks: tuple[NetworkMode, ...] | None = Field(
        None, description="Network modes that may be asked for; null: all, but `full` by admins alone."
    )
    endpoints: tuple[str, ...] = Field(
        (), description="Model endpoints that tokens of the role user may name in `spec.endpoint`; admins name any."
    )

    object_storage: ObjectStorage | None = Field(
        None, description="Storage over which ROCK's client moves large files; null: they go through this service."
    )
    task_sources: dict[str, dict[str, Any]] = Field(
        {"bash": {}},
        description="Task sources that are environments, as `ale:NAME`: name -> a section `tasks` of a run file; `use` "
        "is by default the name. Users play their tasks, and the sources run in the service itself.",
    )

    body_limit_bytes: int = Field(64 << 20, gt=0, description="Largest JSON body.")
    upload_limit_bytes: int = Field(16 << 30, gt=0, description="Largest file.")
    body_timeout_s: float = Field(30.0, gt=0, description="Longest wait for the next piece of a body.")
    keep_ended: int = Field(10_000, ge=0, description="Ended sandboxes kept in memory; all are in the database.")
    log_limit_bytes: int = Field(
        64 << 10, ge=0, description="How much of the log of an ended sandbox is kept: the end of it; 0: nothing."
    )
    forget_after_s: float = Field(
        7 * 86_400.0, gt=0, description="Rows and logs of ended sandboxes are deleted after this time."
    )

    @field_validator("database")
    @classmethod
    def _is_synchronous(cls, value: str) -> str:
        try:
            url = make_url(value)
            if url.get_dialect().is_async:
                raise ValueError(
                    f"database: the driver of {url.drivername!r} is asynchronous; write {url.get_backend_name()}://, "
                    "or postgresql+psycopg:// for PostgreSQL"
                )
        except ArgumentError:
            raise ValueError(
                "database: this is no SQLAlchemy URL; write sqlite:///FILE or postgresql+psycopg://..."
            ) from None
        return value

    @model_validator(mode="after")
    def _needs_tokens(self) -> Self:
        if not self.tokens and not is_loopback(self.host):
            raise ValueError(
                f"host: {self.host} can be reached from other machines, and nobody needs a token; name tokens, or "
                "listen at 127.0.0.1"
            )
        if len({each.token.get_secret_value() for each in self.tokens}) < len(self.tokens):
            raise ValueError("tokens: two of them are the same")
        return self
