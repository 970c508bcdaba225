"""Prepares what a sandbox gets from the host besides /usr: the resident's program, a small /etc, the host's Python.

The program and /etc are in one *base folder* per provider, made when it starts and removed when it closes. Folders of
the host's /etc are mounted over it: to copy 700 links to certificates would take most of a provider's start.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from ale_sandbox.host.owned_folders import new_base
from ale_sandbox.host.resident_program import write_program

ETC = (
    *("alternatives", "bash.bashrc", "ca-certificates.conf", "inputrc", "ld.so.cache", "ld.so.conf", "ld.so.conf.d"),
    *("localtime", "mime.types", "nsswitch.conf", "os-release", "pki/tls/certs", "profile", "protocols", "services"),
    *("ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone"),
)
"""What sandboxes see of the host's /etc: programs need it, and it holds no secrets. Files and links are copied, folders
are mounted."""
USERS = (("root", 0, "/root"), ("agent", 1000, "/home/agent"), ("tests", 1001, "/home/agent"), ("nobody", 65534, "/"))
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def make_base(folder: Path) -> Path:
    """Make the base folder inside the state folder, with `program/` and `etc/` in it."""
    base = new_base(folder)
    write_program(base / "program")
    (base / "program" / "gate").mkdir()
    make_etc(base / "etc")
    return base


def make_etc(etc: Path) -> None:
    """Write a small /etc: copies of public files, mount points for `etc_folders`, the sandbox's own users and hosts."""
    etc.mkdir()
    for name in ETC:
        source, target = Path("/etc") / name, etc / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if str(source) in etc_folders():
            target.mkdir()
            continue
        # What is missing on this system, or not readable by everyone, is left out.
        with suppress(OSError):
            if source.is_symlink() or source.stat().st_mode & 0o004:
                shutil.copy2(source, target, follow_symlinks=False)
    (etc / "passwd").write_text("".join(f"{n}:x:{i}:{i}:{n}:{home}:/bin/sh\n" for n, i, home in USERS))
    (etc / "group").write_text("".join(f"{n}:x:{i}:\n" for n, i, _ in USERS))
    (etc / "hosts").write_text("127.0.0.1 localhost sandbox\n::1 localhost\n")
    (etc / "hostname").write_text("sandbox\n")


@functools.cache
def etc_folders() -> tuple[str, ...]:
    """Return the folders of the host's /etc that every sandbox sees as they are. A process looks once, so that each
    sandbox has the mount points for them."""
    places = [Path("/etc") / name for name in ETC]
    return tuple(str(place) for place in places if place.is_dir() and not place.is_symlink())


def python_folders() -> list[str]:
    """List the folders of the Python that runs ALE, except those below /usr."""
    found: list[str] = []
    for prefix in (sys.base_prefix, sys.prefix):
        inside = [*found, "/usr"]
        if not any(Path(prefix).is_relative_to(other) for other in inside):
            found.append(prefix)
    return found


def search_path(host_python: bool) -> str:
    """Return PATH for the sandbox: the system's folders first, the host's Python last."""
    extra = [str(Path(prefix) / "bin") for prefix in dict.fromkeys((sys.prefix, sys.base_prefix))]
    return ":".join([PATH, *(p for p in extra if host_python and p not in PATH.split(":"))])


def interpreter(host_python: bool) -> str | None:
    """Return the path inside the sandbox of the Python that runs the resident; None if there is none."""
    own = os.path.realpath(sys.executable)
    reachable = [*(python_folders() if host_python else ()), "/usr"]
    if any(Path(own).is_relative_to(folder) for folder in reachable):
        return own
    return "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else None


def find_shell(configured: str | None) -> str:
    """Return the shell that runs commands: the configured one, else bash if it exists, else sh."""
    if configured is not None:
        return configured
    return "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
