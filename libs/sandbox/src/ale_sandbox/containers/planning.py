"""Turns a sandbox spec into the plan of a container and into the constants that its resident gets."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path

from ale.errors import ConfigError
from ale.specs.sandbox import Resources, SandboxSpec
from ale_sandbox.containers.config import ContainerConfig
from ale_sandbox.containers.engine import LABEL, ContainerPlan
from ale_sandbox.containers.image_snapshots import OWNER
from ale_sandbox.containers.images import DEFAULT_IMAGE
from ale_sandbox.host.commands import as_bytes
from ale_sandbox.host.owned_folders import this_process
from ale_sandbox.network.policy import check_policy, network_plan

CREATED, USER_LABEL = "ale.created", "ale.label."
NETWORK_CAPS = ("NET_ADMIN", "NET_BIND_SERVICE", "NET_RAW")
"""Capabilities for the network `allow`: the resident sets it up and drops them before anything else runs."""
RESIDENT_CAPS = ("CHOWN", "DAC_OVERRIDE", "KILL", "SETGID", "SETUID")
ROOT_CAPS = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT")
"""Capabilities of an agent that is root: enough for package managers, none that reaches beyond the container."""
OPEN_FILES = 4096
PER_USER = "RLIMIT_SIGPENDING=4096 RLIMIT_MSGQUEUE=614400"
"""The kernel counts queued signals and message queues per user of the whole machine, so each sandbox gets only a part
of them."""
IPV6_OFF, TIME_WAIT = "net.ipv6.conf.all.disable_ipv6", "net.ipv4.tcp_max_tw_buckets"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def check_spec(spec: SandboxSpec) -> None:
    """Refuse a spec that no container can meet. Raises `ConfigError`."""
    check_policy(spec)
    if spec.id is not None and not NAME.fullmatch(spec.id):
        raise ConfigError(f"A sandbox cannot be named {spec.id!r}; use up to 64 letters, digits, '-', '_' and '.'.")
    if not spec.workdir.startswith("/") or ".." in spec.workdir.split("/") or spec.workdir.strip("/") == "":
        raise ConfigError(f"The sandbox's workdir {spec.workdir!r} must be an absolute path, such as /workspace.")


def user_of(spec: SandboxSpec, config: ContainerConfig) -> str:
    """Return the user that the agent runs as: the spec's choice, or else the provider's."""
    return spec.user or config.user


def limits_of(spec: SandboxSpec, config: ContainerConfig) -> Resources:
    """Return the limits of a sandbox: its own, or else the provider's."""
    own = {name: value for name, value in spec.resources if value is not None}
    return Resources(**{**config.defaults.model_dump(), **own})


def make_plan(
    spec: SandboxSpec,
    config: ContainerConfig,
    engine: str,
    name: str,
    image: str,
    command: list[str],
    mounts: list[tuple[str, str, bool]],
    run_labels: Mapping[str, str],
) -> ContainerPlan:
    """ContainerPlan the container. Raises `ConfigError` if the engine cannot enforce its limits."""
    limits = limits_of(spec, config)
    own_labels = {f"{USER_LABEL}{key}": value for key, value in {**run_labels, **spec.labels}.items()}
    capabilities = RESIDENT_CAPS if user_of(spec, config) == "agent" else ROOT_CAPS
    return ContainerPlan(
        name=name,
        image=image,
        command=command,
        labels={LABEL: name, OWNER: this_process(), CREATED: repr(time.time()), **own_labels},
        mounts=tuple(mounts),
        network=spec.network == "full",
        resources=limits,
        capabilities=capabilities + (NETWORK_CAPS if spec.network == "allow" else ()),
        in_memory=folders_in_memory(spec, config, engine, image, limits),
        sysctls=sysctls(spec),
    )


def folders_in_memory(
    spec: SandboxSpec, config: ContainerConfig, engine: str, image: str, limits: Resources
) -> dict[str, str]:
    """Return the writable folders and their modes (the same as on a layer) if the disk is limited: few engines can
    limit a container's layer."""
    if limits.disk_mib is None:
        return {}
    if image != DEFAULT_IMAGE:
        raise ConfigError(
            f"The files of the image {image} lie in a layer whose size {engine} cannot limit, so disk_mib "
            f"{limits.disk_mib} cannot be met; set needs.resources.disk_mib to null."
        )
    home = "/home/agent" if user_of(spec, config) == "agent" else "/root"
    return {spec.workdir: "755", home: "755", "/tmp": "1777", "/var/tmp": "1777"}


def sysctls(spec: SandboxSpec) -> dict[str, str]:
    """Return the kernel settings of a container's network if the gate is its only way out."""
    settings: dict[str, str] = {}
    if spec.network != "full":
        # Closed connections need not be remembered; a reset would have to wait a minute for them.
        settings[TIME_WAIT] = "0"
    if spec.network == "allow" and Path("/proc/sys/net/ipv6").is_dir():
        # Engines turn IPv6 off if there is no network; then attempts to use it could not be seen.
        settings[IPV6_OFF] = "0"
    return settings


OWN_VARIABLES = frozenset({"HOME", "USER", "TMPDIR"})
"""What an image sets of these belongs to another user than the agent."""


def resident_constants(
    spec: SandboxSpec, config: ContainerConfig, name: str, image_env: Mapping[str, str]
) -> list[bytes]:
    """Return what the resident has to know (see `set_up` in `resident/requests.py`); `image_env` is the environment of
    the sandbox's image, which the spec's stands above."""
    several = user_of(spec, config) == "agent"
    env = {
        "PATH": PATH,
        "HOME": "/home/agent" if several else "/root",
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
        "USER": "agent" if several else "root",
        **{key: value for key, value in image_env.items() if key not in OWN_VARIABLES},
        **spec.env,
        "ALE_SANDBOX": name,
    }
    network = "\n".join(network_plan(spec))
    limits = f"RLIMIT_CORE=0 {PER_USER} RLIMIT_NOFILE={limits_of(spec, config).open_files or OPEN_FILES}"
    fields = ["users" if several else "root", spec.workdir, config.shell or "", limits, "make", network]
    return [as_bytes(text) for text in (*fields, *(f"{key}={value}" for key, value in env.items()))]
