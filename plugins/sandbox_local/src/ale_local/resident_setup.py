"""Makes the constants of a local sandbox's resident: its folders, environment and limits."""

from __future__ import annotations

from collections.abc import Container

from ale.specs.sandbox import Resources, SandboxSpec
from ale_local import base_folder, sandbox_records
from ale_local.bubblewrap import HOME
from ale_local.config import LocalSandboxConfig
from ale_sandbox.host.commands import as_bytes
from ale_sandbox.network.policy import network_plan


def resident_constants(
    spec: SandboxSpec,
    config: LocalSandboxConfig,
    record: sandbox_records.Record,
    resources: Resources,
    mode: str,
    groups: Container[str],
) -> list[bytes]:
    """Make the resident's constants (see `set_up` in `ale_sandbox.resident.requests`). `mode` says which users exist:
    `users`, `single`, or `plain` without isolation; `groups` are the control groups that enforce limits."""
    if record.folder is None:
        workdir, home, tmp = spec.workdir, HOME, "/tmp"
    else:
        workdir, home, tmp = (f"{record.folder}/{name}" for name in ("work", "home", "tmp"))
    env = {
        "PATH": base_folder.search_path(config.host_python),
        "HOME": home,
        "TMPDIR": tmp,
        "LANG": "C.UTF-8",
        "USER": "agent",
        **spec.env,
        sandbox_records.MARKER: record.id,
    }
    network = "\n".join(network_plan(spec)) if mode != "plain" else ""
    fields = [mode, workdir, base_folder.find_shell(config.shell), rlimits(mode, resources, groups), "", network]
    return [as_bytes(text) for text in (*fields, *(f"{name}={value}" for name, value in env.items()))]


def rlimits(mode: str, resources: Resources, groups: Container[str]) -> str:
    """Return the limits that are enforced per process, because no control group enforces them."""
    limits: dict[str, int] = {"RLIMIT_CORE": 0}
    if resources.open_files is not None:
        limits["RLIMIT_NOFILE"] = resources.open_files
    if resources.memory_mib is not None and "memory" not in groups:
        limits["RLIMIT_DATA"] = resources.memory_mib << 20
    if resources.pids is not None and "pids" not in groups and mode == "single":
        limits["RLIMIT_NPROC"] = (
            resources.pids
        )  # counted per user namespace, and only in this mode each sandbox has its own
    if resources.disk_mib is not None and mode == "plain":
        limits["RLIMIT_FSIZE"] = resources.disk_mib << 20
    return " ".join(f"{name}={value}" for name, value in limits.items())
