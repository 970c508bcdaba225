"""What `ale doctor` checks by itself: the machine, and the packages of ALE with what they need."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from ale.cli.doctor import Finding, find_distribution
from ale.registry.installed import list_plugins
from ale.registry.packages import our_packages

GIB = 1 << 30
LITTLE_DISK_GIB = 5.0


def check_machine() -> Iterator[Finding]:
    """Yield Python, the system, CPUs, memory and disks."""
    where = "a virtual environment" if sys.prefix != sys.base_prefix else "no virtual environment"
    python = f"{platform.python_implementation()} {platform.python_version()}, {where}, {sys.executable}"
    supported = sys.version_info >= (3, 11)
    yield Finding("Python", "ok" if supported else "broken", python, "" if supported else "use Python 3.11 or newer")
    yield Finding("system", "info", f"{platform.platform()}, {_distribution()}, {platform.machine()}{_container()}")
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0
    yield Finding("CPUs", "info", f"{cpus} of {os.cpu_count()} usable{_cpu_limit()}; load {os.getloadavg()[0]:.1f}")
    yield Finding("memory", "info", _memory())
    for name, folder in (("work folder", Path.cwd()), ("temporary files", Path(tempfile.gettempdir()))):
        free = shutil.disk_usage(folder).free / GIB
        little = free < LITTLE_DISK_GIB
        mend = "make room: runs with checkpoints need more" if little else ""
        yield Finding(f"disk of the {name}", "missing" if little else "ok", f"{free:.0f} GiB free, {folder}", mend)


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown distribution")
    except OSError:
        return "unknown distribution"


def _container() -> str:
    return ", in a container" if any(map(os.path.exists, ("/.dockerenv", "/run/.containerenv"))) else ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _cpu_limit() -> str:
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    return f", limited to {int(quota) / int(period):.1f} by a control group" if quota.isdigit() and period else ""


def _memory() -> str:
    sizes = {}
    for line in _read("/proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        sizes[name] = int(rest.split()[0]) / (1 << 20)
    limit = _read("/sys/fs/cgroup/memory.max")
    held = f", limited to {int(limit) / GIB:.1f} GiB by a control group" if limit.isdigit() else ""
    if not sizes:
        return "unknown"
    return f"{sizes.get('MemAvailable', 0):.1f} of {sizes.get('MemTotal', 0):.1f} GiB available{held}"


def check_packages() -> Iterator[Finding]:
    """Yield the packages of ALE that are installed, what they lack, and other packages' plugins."""
    ours = {name: found for name in our_packages() if (found := find_distribution(name))}
    for version in sorted({found.version for found in ours.values()}):
        names = ", ".join(name for name, found in ours.items() if found.version == version)
        yield Finding(f"ALE {version}", "ok", names)
    if absent := [name for name in our_packages() if name not in ours]:
        yield Finding("not installed", "info", ", ".join(absent), "pip install NAME, for those that you need")
    yield from _requirements(ours)
    for info in list_plugins():
        name = f"{info.kind} '{info.name}' of {info.package} {info.version}"
        if info.status != "ok":
            yield Finding(name, "broken", f"{info.status}: {info.reason}")
        elif info.package not in ours:
            yield Finding(name, "ok", "a plugin of another package")


def _requirements(ours: dict[str, metadata.Distribution]) -> Iterator[Finding]:
    """Yield each library that a package of ALE needs in another version, and the versions of all that are there."""
    versions: dict[str, str] = {}
    for package, found in ours.items():
        for text in found.requires or ():
            needed = Requirement(text)
            # Libraries of extras are shown where they are there; who did not ask for an extra need not have them.
            wanted = needed.marker is None or needed.marker.evaluate({"extra": ""})
            library = find_distribution(needed.name)
            if library is not None and needed.name not in our_packages():
                versions[needed.name.lower()] = library.version
            if not wanted:
                continue
            fits = library is not None and needed.specifier.contains(library.version, prereleases=True)
            if not fits:
                has = "it is not installed" if library is None else f"{library.version} is installed"
                yield Finding(package, "broken", f"it needs {needed}, but {has}", f"pip install '{needed}'")
    listed = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    yield Finding("libraries", "info", listed)
