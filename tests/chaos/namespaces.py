"""Linux namespaces for a program that does damage: its own process ids, and mounts that no other program sees.

So what it leaves can be told from what other programs do, it may mount a small disk and fill it, and nothing outlives
it, however it ends. A user who is not root gets a user namespace too, as for sandboxes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = "ALE_CHAOS_FOLDER"
REAP = '"$@"; exit $?'
"""The first process of the namespace is a shell, which reaps processes whose parent has ended."""


def enter(network: bool = False) -> Path:
    """Inside, return a folder for this program's files. Outside, start it again inside, and exit as it does; the folder
    stays if it fails. `network`: it gets a network of its own too, which has nothing yet."""
    if FOLDER in os.environ:
        return Path(os.environ[FOLDER])
    folder = tempfile.mkdtemp(prefix="chaos-", dir="/tmp")  # sockets of Ray need a short path
    user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    parts = ["--mount", *(["--net"] if network else [])]
    inside = ["unshare", *user, *parts, "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", REAP, "sh"]
    command = ["setpriv", "--pdeathsig", "KILL", *inside, sys.executable, *sys.argv]
    code = subprocess.run(command, env={**os.environ, FOLDER: folder}, check=False).returncode
    if code == 0:
        shutil.rmtree(folder)
    sys.exit(code)


def mount_memory(folder: Path, mib: int) -> None:
    """Mount an empty file system of this size; it is gone with the namespace."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=1777", "ale-chaos", str(folder)], check=True)


def processes() -> dict[int, list[str]]:
    """Return the command lines of all processes of the namespace that have not ended."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            line = (folder / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        except OSError:  # it has ended meanwhile
            continue
        if state not in ("Z", "X"):
            found[int(folder.name)] = line
    return found
