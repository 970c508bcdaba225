"""Enforces limits with control groups, version 1 or 2: one group per sandbox, below one parent named `ale`.

If ALE may not write there, there are no groups, and the provider falls back to rlimits.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from ale.specs.sandbox import Resources
from ale.specs.sandbox_protocols import SandboxStats

MOUNT = Path("/sys/fs/cgroup")
PARENT = "ale"
CPU_PERIOD_US = 100_000
SOCKETS = 4
"""A sandbox's sockets may hold one part in this many of its memory limit, in addition to the limit."""


def parents(mount: Path = MOUNT) -> dict[str, Path]:
    """Find or make the parent group of each usable controller. Version 2 has one group for all."""
    found: dict[str, Path] = {}
    unified = (mount / "cgroup.controllers").exists()
    if unified:
        try:
            (mount / PARENT).mkdir(exist_ok=True)
            wanted = "+memory +pids +cpu"
            (mount / "cgroup.subtree_control").write_text(wanted)
            (mount / PARENT / "cgroup.subtree_control").write_text(wanted)
        except OSError:
            return {}
        return {name: mount / PARENT for name in ("memory", "pids", "cpu")}
    for name in ("memory", "pids", "cpu", "cpuacct"):
        try:
            (mount / name / PARENT).mkdir(exist_ok=True)
        except OSError:
            continue
        if os.access(mount / name / PARENT / "cgroup.procs", os.W_OK):
            found[name] = mount / name / PARENT
    return found


def settings(resources: Resources, unified: bool) -> list[tuple[str, str, str]]:
    """List what to write: controller, file, value."""
    wanted: list[tuple[str, str, str]] = []
    if resources.memory_mib is not None:
        size = str(resources.memory_mib << 20)
        wanted.append(("memory", "memory.max" if unified else "memory.limit_in_bytes", size))
        if unified:
            wanted.append(("memory", "memory.swap.max", "0"))
        else:
            wanted.append(("memory", "memory.memsw.limit_in_bytes", size))
            # Version 1 counts the memory of sockets separately, and only if that has a limit.
            wanted.append(("memory", "memory.kmem.tcp.limit_in_bytes", str((resources.memory_mib << 20) // SOCKETS)))
    if resources.pids is not None:
        wanted.append(("pids", "pids.max", str(resources.pids)))
    if resources.cpus is not None:
        quota = str(int(resources.cpus * CPU_PERIOD_US))
        wanted.append(("cpu", "cpu.max", f"{quota} {CPU_PERIOD_US}") if unified else ("cpu", "cpu.cfs_quota_us", quota))
    return wanted


def create(parent: dict[str, Path], name: str, resources: Resources) -> list[str]:
    """Make a sandbox's groups with their limits; return the folders whose `cgroup.procs` must list its process."""
    made: dict[str, Path] = {}
    for controller, path in parent.items():
        made[controller] = path / name
        made[controller].mkdir(exist_ok=True)
    unified = any((path / "cgroup.controllers").exists() for path in made.values())
    for controller, file, value in settings(resources, unified):
        if controller in made and (made[controller] / file).exists():
            (made[controller] / file).write_text(value)
    return sorted({str(path) for path in made.values()})


def remove(groups: list[str], until: float) -> None:
    """Kill what runs in groups and remove them; try until the time `until` (monotonic)."""
    for group in groups:
        path = Path(group)
        while path.exists():
            try:
                path.rmdir()
            except OSError:
                with suppress(OSError):  # another process removed the group or reaped its last process
                    for pid in (path / "cgroup.procs").read_text().split():
                        with suppress(ProcessLookupError):
                            os.kill(int(pid), signal.SIGKILL)
                if time.monotonic() > until:
                    break
                time.sleep(0.002)


def read_stats(groups: list[str]) -> SandboxStats:
    """Return what a sandbox uses now; None for what its groups do not count."""

    def number(*names: str) -> int | None:
        for group in groups:
            for name in names:
                path = Path(group, name)
                if path.exists():
                    return int(path.read_text())
        return None

    nanoseconds = number("cpuacct.usage")
    cpu_s = None if nanoseconds is None else nanoseconds / 1e9
    for group in groups:
        path = Path(group, "cpu.stat")
        if path.exists():
            lines = dict(line.split() for line in path.read_text().splitlines())
            cpu_s = int(lines["usage_usec"]) / 1e6 if "usage_usec" in lines else cpu_s
    return SandboxStats(number("memory.current", "memory.usage_in_bytes"), cpu_s, number("pids.current"))
