"""The bodies that E2B's SDK sends to the control plane, and the sandbox of this service that one asks for."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from ale.specs.sandbox import NetworkMode, SandboxSpec
from ale_rock.admin.start_requests import explain
from ale_rock.e2b.errors import E2bError
from ale_rock.e2b.sandboxes import BASE

HOME = "/home/user"
"""Where E2B's users work: relative paths are below it."""
DEFAULT_TIMEOUT_S, MOST_TIMEOUT_S = 300, 10**9
ALL_TRAFFIC = "0.0.0.0/0"


class Body(BaseModel):
    """A body. What it does not know is refused by its name."""

    model_config = ConfigDict(extra="forbid")


class NewSandbox(Body):
    """`POST /v2/sandboxes`."""

    templateID: str = Field(BASE, min_length=1, max_length=512)
    timeout: int = Field(DEFAULT_TIMEOUT_S, ge=1, le=MOST_TIMEOUT_S, description="Seconds.")
    autoPause: bool = False
    autoPauseMemory: bool | None = None
    autoResume: dict[str, JsonValue] | None = None
    secure: bool | None = Field(None, description="Of older SDKs; every sandbox is.")
    allow_internet_access: bool | None = None
    network: dict[str, JsonValue] | None = None
    metadata: dict[str, str] | None = None
    envVars: dict[str, str] | None = Field(None, repr=False)
    mcp: JsonValue = None
    iam: JsonValue = None
    volumeMounts: JsonValue = None


class Connect(Body):
    """`POST /v2/sandboxes/{id}/connect`, and `/resume` of older SDKs."""

    timeout: int = Field(DEFAULT_TIMEOUT_S, ge=1, le=MOST_TIMEOUT_S)
    memory: bool | None = None
    autoPause: bool | None = None


class Pause(Body):
    """`POST /sandboxes/{id}/pause`."""

    memory: bool | None = None
    requireHealthyGuest: bool | None = None


class SetTimeout(Body):
    """`POST /sandboxes/{id}/timeout`."""

    timeout: int = Field(ge=0, le=MOST_TIMEOUT_S)


class Refresh(Body):
    """`POST /sandboxes/{id}/refreshes`."""

    duration: int = Field(15, ge=0, le=MOST_TIMEOUT_S)


def spec_of(asked: NewSandbox, default_network: NetworkMode) -> SandboxSpec:
    """Return the spec of a new sandbox. Raises `E2bError`."""
    lacking = {
        "mcp": asked.mcp,
        "iam": asked.iam,
        "volumeMounts (volume_mounts)": asked.volumeMounts,
        "autoResume (lifecycle auto_resume)": (asked.autoResume or {}).get("enabled"),
        "autoPauseMemory (lifecycle mode 'full')": asked.autoPause and asked.autoPauseMemory,
    }
    for name, value in lacking.items():
        if value:
            raise E2bError(400, f"This service does not offer {name}; leave it out.")
    mode, allow = network_of(asked, default_network)
    try:
        return SandboxSpec(
            image=None if asked.templateID == BASE else asked.templateID,
            network=mode,
            allow=allow,
            workdir=HOME,
            env={"HOME": HOME, **(asked.envVars or {})},
            labels=asked.metadata or {},
        )
    except ValidationError as error:
        raise E2bError(400, explain(error)) from None


def network_of(asked: NewSandbox, default: NetworkMode) -> tuple[NetworkMode, tuple[str, ...]]:
    """Return the network mode and the hosts that a new sandbox may reach. Raises `E2bError`."""
    network: dict[str, Any] = {name: value for name, value in (asked.network or {}).items() if value not in (None, [])}
    allow, deny = network.pop("allowOut", ()), network.pop("denyOut", ())
    if network.get("allowPublicTraffic") is False:  # the access token is always asked for
        del network["allowPublicTraffic"]
    if network:
        raise E2bError(400, f"This service does not offer network.{', network.'.join(network)}; leave it out.")
    if deny not in ((), [ALL_TRAFFIC]):
        raise E2bError(400, f"This service denies all traffic or none: deny_out is [{ALL_TRAFFIC!r}], or left out.")
    if allow:
        if not deny and asked.allow_internet_access is not False:
            raise E2bError(400, f"allow_out names the only hosts that may be reached; add deny_out=[{ALL_TRAFFIC!r}].")
        if not isinstance(allow, list) or not all(isinstance(host, str) for host in allow):
            raise E2bError(400, "network.allowOut is a list of hosts.")
        return "allow", tuple(entry for host in allow for entry in with_ports(host))
    if deny or asked.allow_internet_access is False:
        return "none", ()
    return ("full" if asked.allow_internet_access else default), ()


def with_ports(host: str) -> tuple[str, ...]:
    """Return a host of E2B as this service names hosts: a domain without a port is meant for HTTP and TLS."""
    is_domain = ":" not in host and "/" not in host and not host.rpartition(".")[2].isdigit()
    return (f"{host}:443", f"{host}:80") if is_domain else (host,)
