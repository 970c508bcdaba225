"""Checks the network policy of a sandbox before it starts, and makes the plan of its relay from it."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import urlsplit

from ale.errors import ConfigError
from ale.specs.sandbox import ENDPOINT_PORT, SandboxSpec, host_and_port
from ale_sandbox.host.commands import check_environment


def network_plan(spec: SandboxSpec) -> list[str]:
    """List what the sandbox's relay listens for, one line each (`resident/network/network_setup.py` reads them). It is
    empty if the sandbox has no relay."""
    if spec.network == "none":
        return []
    plan = [] if spec.endpoint is None else [f"endpoint - {ENDPOINT_PORT}"]
    if spec.network == "allow":
        plan += ["host {} {}".format(*host_and_port(entry)) for entry in spec.allow]
    return plan


def check_policy(spec: SandboxSpec) -> None:
    """Refuse a policy that is incomplete or contradicts itself, and variables that no program can be given. Raises
    `ConfigError`."""
    check_environment(spec.env)
    if spec.allow and spec.network != "allow":
        raise ConfigError(
            f"needs.allow names hosts, but needs.network is {spec.network}; set needs.network to allow, or remove "
            "needs.allow."
        )
    if spec.network == "allow" and not spec.allow:
        raise ConfigError("needs.network is allow, but needs.allow names no host; name some, such as pypi.org:443.")
    if spec.network == "endpoint-only" and spec.endpoint is None:
        raise ConfigError(
            "The network policy endpoint-only needs the address of the model endpoint; set SandboxSpec.endpoint."
        )
    if spec.endpoint is not None:
        endpoint_address(spec.endpoint)


def endpoint_address(endpoint: str) -> str | tuple[str, int]:
    """Return where the model endpoint listens: a Unix socket's path, or host and port. Raises `ConfigError`."""
    parts = urlsplit(endpoint)
    with suppress(ValueError):
        if parts.scheme == "unix" and parts.path.startswith("/"):
            return parts.path
        if parts.scheme == "http" and parts.hostname and parts.port:
            return parts.hostname, parts.port
    raise ConfigError(
        f"The model endpoint {endpoint!r} is neither http://HOST:PORT nor unix:///PATH (SandboxSpec.endpoint)."
    )
