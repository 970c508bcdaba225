"""What a sandbox gets from the host besides /usr: the resident's program, a small /etc, and the host's Python.

They stand in one *base folder* per provider, made at its start and removed at its close.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from ale_resident.owner import new_base
from ale_resident.program import write_program

ETC = (
    *("alternatives", "bash.bashrc", "ca-certificates.conf", "inputrc", "ld.so.cache", "ld.so.conf", "ld.so.conf.d"),
    *("localtime", "mime.types", "nsswitch.conf", "os-release", "pki/tls/certs", "profile", "protocols", "services"),
    *("ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone"),
)
"""What of the host's /etc is copied: what programs need and no secret stands in."""
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
    """A small /etc: copies of what is public, users and hosts of the sandbox's own."""
    etc.mkdir()
    for name in ETC:
        source, target = Path("/etc") / name, etc / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            if source.is_dir() and not source.is_symlink():
                shutil.copytree(source, target, symlinks=True)
            elif source.is_symlink() or source.stat().st_mode & 0o004:
                shutil.copy2(source, target, follow_symlinks=False)
        except (OSError, shutil.Error):
            continue  # absent on this system, or not for everyone's eyes
    (etc / "passwd").write_text("".join(f"{n}:x:{i}:{i}:{n}:{home}:/bin/sh\n" for n, i, home in USERS))
    (etc / "group").write_text("".join(f"{n}:x:{i}:\n" for n, i, _ in USERS))
    (etc / "hosts").write_text("127.0.0.1 localhost sandbox\n::1 localhost\n")
    (etc / "hostname").write_text("sandbox\n")


def python_folders() -> list[str]:
    """The folders of the Python that runs ALE which do not stand below /usr anyway."""
    found: list[str] = []
    for prefix in (sys.base_prefix, sys.prefix):
        inside = [*found, "/usr"]
        if not any(Path(prefix).is_relative_to(other) for other in inside):
            found.append(prefix)
    return found


def search_path(host_python: bool) -> str:
    """PATH inside the sandbox: the system's folders first, the host's Python last."""
    extra = [str(Path(prefix) / "bin") for prefix in dict.fromkeys((sys.prefix, sys.base_prefix))]
    return ":".join([PATH, *(p for p in extra if host_python and p not in PATH.split(":"))])


def interpreter(host_python: bool) -> str | None:
    """The Python that runs the resident, by its path inside the sandbox; None where there is none."""
    own = os.path.realpath(sys.executable)
    reachable = [*(python_folders() if host_python else ()), "/usr"]
    if any(Path(own).is_relative_to(folder) for folder in reachable):
        return own
    return "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else None


def find_shell(configured: str | None) -> str:
    """The shell of the commands: the configured one, else bash where there is one."""
    if configured is not None:
        return configured
    return "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
