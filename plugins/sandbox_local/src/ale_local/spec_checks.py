"""Refuses specs that local sandboxes cannot meet, before they start."""

from __future__ import annotations

import re

from ale.errors import ConfigError
from ale.specs.sandbox import Resources, SandboxSpec
from ale_local.bubblewrap import workdir_fault
from ale_local.config import LocalSandboxConfig
from ale_sandbox.network.policy import check_policy

INSTALL = "install it (apt-get install bubblewrap, dnf install bubblewrap) and allow user namespaces"


def check_spec(spec: SandboxSpec, config: LocalSandboxConfig, *, isolated: bool, limited: bool) -> Resources:
    """Refuse what cannot be met; return the limits: the spec's, or else the provider's."""
    if spec.image is not None:
        raise ConfigError(
            f"The local sandbox provider has no images, so image: {spec.image!r} cannot be met; "
            "use a container provider (sandbox: docker or podman), or leave it null."
        )
    if spec.from_snapshot is not None and not isolated:
        raise ConfigError(
            f"Without isolation there are no snapshots, so from_snapshot: {spec.from_snapshot!r} cannot be met: "
            f"{INSTALL}."
        )
    if isolated and spec.network == "full":
        raise ConfigError(
            "An isolated local sandbox cannot have the host's whole network, so network: full cannot be met; name the "
            "hosts it needs (needs.network: allow, needs.allow: ['*:443'] is the public web), or use a container "
            "provider (sandbox: docker or podman)."
        )
    if not isolated and spec.network != "full":
        raise ConfigError(
            f"Without isolation a local sandbox has the host's network, so network: {spec.network} cannot be met: "
            f"{INSTALL}, or set sandbox.isolation to none and needs.network to full."
        )
    check_policy(spec)
    if spec.user == "root":
        raise ConfigError(
            "The agent is an unprivileged user in local sandboxes, so user: root cannot be met; leave it null, or use "
            "a container provider (sandbox: docker or podman)."
        )
    if spec.resources.gpus is not None:
        raise ConfigError(
            "The local sandbox provider has no GPUs; leave needs.resources.gpus out, or use sandbox: docker."
        )
    if spec.id is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", spec.id):
        raise ConfigError(f"A sandbox cannot be named {spec.id!r}; use up to 64 letters, digits, '-' and '_'.")
    fault = workdir_fault(spec.workdir) if isolated else None
    if fault is not None:
        raise ConfigError(f"The sandbox's workdir {spec.workdir!r} {fault}.")
    asked = {name for name, value in spec.resources if value is not None}
    unmet = asked - ({"disk_mib", "open_files"} if isolated else set())
    if unmet and not limited:
        raise ConfigError(
            "On this machine local sandboxes have no limits (no isolation, or no control groups that ALE may "
            f"write), so {', '.join(sorted(unmet))} cannot be met; leave needs.resources out."
        )
    own = {k: v for k, v in spec.resources.model_dump().items() if v is not None}
    return Resources(**{**config.defaults.model_dump(), **own})
