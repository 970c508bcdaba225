"""What `ale doctor` says about local sandboxes: bubblewrap, user namespaces and control groups, as a run would find
them."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ale.cli.doctor import Finding
from ale_local import base_folder, cgroups
from ale_local.config import LocalSandboxConfig
from ale_local.isolation import find_isolation
from ale_local.spec_checks import INSTALL

NAMESPACES = (
    ("/proc/sys/kernel/unprivileged_userns_clone", "0"),
    ("/proc/sys/user/max_user_namespaces", "0"),
    ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
)
"""Settings of the kernel that forbid user namespaces to normal users, and the value with which they do."""


def check() -> Iterator[Finding]:
    """Yield whether a sandbox would be isolated and limited here."""
    yield _check_bubblewrap()
    forbidding = [f"{path} is {value}" for path, value in NAMESPACES if _read(path) == value]
    if forbidding:
        yield Finding("user namespaces", "info", f"forbidden to normal users: {', '.join(forbidding)}")
    yield _check_isolation()
    groups = cgroups.parents()
    if {"memory", "pids"} <= groups.keys():
        version = 2 if (cgroups.MOUNT / "cgroup.controllers").exists() else 1
        yield Finding("control groups", "ok", f"version {version}: {', '.join(groups)}")
    else:
        text = f"{', '.join(groups) or 'none'} can be used, so sandboxes have no limits of memory and processes"
        mend = f"run ALE as root, or let its user write to {cgroups.MOUNT}"
        yield Finding("control groups", "missing", text, mend)


def _check_bubblewrap() -> Finding:
    path = shutil.which("bwrap")
    if path is None:
        return Finding("bubblewrap", "missing", "there is no program `bwrap`", INSTALL)
    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
    return Finding("bubblewrap", "ok", f"{done.stdout.strip()}, {path}")


def _check_isolation() -> Finding:
    config = LocalSandboxConfig()
    with tempfile.TemporaryDirectory(prefix="ale-doctor-", ignore_cleanup_errors=True) as folder:
        base = base_folder.make_base(Path(folder))
        found, fault = find_isolation(base, base_folder.interpreter(config.host_python) or "", config)
        if found is None:
            return Finding("isolation", "missing", f"a sandbox does not start: {fault}", INSTALL)
        wrap, launcher = found
        launcher.close()
        users = "agent and tests are different users" if wrap.namespaces is not None else "with one user"
        if wrap.namespaces is not None:
            wrap.namespaces.close()
        return Finding("isolation", "ok", f"a sandbox starts, {users}")


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
