"""The bubblewrap command line of a sandbox, and the user namespace that it lives in.

Mount, pid, network, IPC, UTS and user namespaces of its own; a root made of read-only binds of the system's own
folders; nothing of /home, /root, /run, /var; fresh /proc, /dev, /tmp and work folder.

- As root, the users of a sandbox are mapped to host ids that own nothing (`HOST_IDS`): the resident is user 0 of the
  namespace, the agent 1000, hidden tests 1001. bubblewrap mounts as root and then enters the namespace (`--userns2`).
- As an ordinary user there is one id to map; agent, tests and resident share it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

from ale.errors import SandboxError

HOST_IDS = 1_879_048_192
"""First of the 65,536 host ids that a sandbox's users are mapped to: far from what /etc/subuid hands out."""
SYSTEM_FOLDERS = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ssl/openssl.cnf", "localtime", "mime.types", "protocols", "services", "nsswitch.conf")
PASSWD = "root:x:0:0::/tmp:/bin/sh\nagent:x:1000:1000::/workspace:/bin/sh\ntests:x:1001:1001::/tmp:/bin/sh\n"
GROUP = "root:x:0:\nagent:x:1000:\ntests:x:1001:\n"


def multi_user() -> bool:
    """Whether agent, tests and resident get user ids of their own."""
    return os.geteuid() == 0


def open_user_namespace() -> int:
    """A file descriptor of a new user namespace with the mapping above (root only)."""
    holder = subprocess.Popen(
        ["unshare", "--user", "sleep", "60"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        own, deadline = os.readlink("/proc/self/ns/user"), time.monotonic() + 5
        while os.readlink(f"/proc/{holder.pid}/ns/user") == own:
            if holder.poll() is not None or time.monotonic() > deadline:
                raise SandboxError("A user namespace cannot be made here (unshare --user fails).")
            time.sleep(0.0005)
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{holder.pid}/{name}").write_text(f"0 {HOST_IDS} 65536\n")
        return os.open(f"/proc/{holder.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise SandboxError(f"A user namespace cannot be made here: {error}.") from error
    finally:
        holder.kill()
        holder.wait()
        if holder.stderr is not None:
            holder.stderr.close()


@cache
def python_folders() -> tuple[Path, ...]:
    """Folders of the Python installation that runs ALE and that are not under /usr."""
    folders = dict.fromkeys(Path(p).resolve() for p in (sys.prefix, sys.base_prefix))
    return tuple(f for f in folders if f.parts[:2] != ("/", "usr"))


def resident_python() -> str:
    """The interpreter for the resident: the one without a virtual environment, which starts fastest."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def shell() -> str:
    """bash where there is one, else sh."""
    return "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"


@cache
def _root_arguments(host_python: bool) -> tuple[str, ...]:
    out: list[str] = []
    for name in SYSTEM_FOLDERS:
        path = Path("/", name)
        if path.is_symlink():
            out += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            out += ["--ro-bind", str(path), str(path)]
    for name in ETC:
        out += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    needed = python_folders() if host_python else (Path(resident_python()).parent.parent,)
    for folder in needed:
        if folder.parts[:2] != ("/", "usr"):
            # bubblewrap would make missing parents for its own user alone; another user has to pass through them.
            for parent in reversed(folder.parents[:-1]):
                out += ["--perms", "0755", "--dir", str(parent)]
            out += ["--ro-bind", str(folder), str(folder)]
    return tuple(out)


def command_line(
    *, workdir: str, disk_mib: int | None, host_python: bool, resident: Path, user_namespace: int | None, passwd: tuple[int, int]
) -> list[str]:
    """The arguments up to the resident's own; `passwd` are descriptors of the two account files."""
    size = ["--size", str(disk_mib << 20)] if disk_mib else []
    identity = (
        ["--userns2", str(user_namespace), "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        if user_namespace is not None
        else ["--unshare-user", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL"]
    )
    return [
        bwrap(), "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
        *identity, "--die-with-parent", "--new-session", "--as-pid-1", "--hostname", "sandbox", "--clearenv",
        *_root_arguments(host_python),
        "--file", str(passwd[0]), "/etc/passwd", "--file", str(passwd[1]), "/etc/group",
        "--proc", "/proc", "--dev", "/dev", "--perms", "1777", *size, "--tmpfs", "/tmp",
        "--perms", "1777", *size, "--tmpfs", workdir, "--ro-bind", str(resident), "/run/ale/resident.py",
        "--chdir", workdir, "--setenv", "LC_ALL", "C.UTF-8",
        resident_python(), "-I", "-S", "/run/ale/resident.py",
    ]  # fmt: skip


def bwrap() -> str:
    """Path of bubblewrap. Raises `SandboxError` where it is not installed."""
    found = shutil.which("bwrap")
    if found is None:
        raise SandboxError("bubblewrap is not installed; `apt-get install bubblewrap` brings it.")
    return found
