"""Adds what an image may lack: work folder, home, user names; finds a shell. Runs in the resident of a container."""

from __future__ import annotations

import os

from ale_sandbox.resident.privileges import AGENT_UID, TESTS_UID

SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh", "/usr/bin/sh")


def find_shell(wanted: str) -> str:
    """Find the requested shell, or the first one that the image has."""
    for shell in (wanted,) if wanted else SHELLS:
        if os.access(shell, os.X_OK):
            return shell
    raise FileNotFoundError(2, f"the image has no {wanted or 'shell (looked for ' + ', '.join(SHELLS) + ')'}")


def make_folders(workdir: str, home: str, owned: bool) -> None:
    """Make the folders, which the agent owns if it has its own user; name the users that have no name."""
    for path in (workdir, home):
        os.makedirs(path, exist_ok=True)
        if owned:
            os.chown(path, AGENT_UID, AGENT_UID)
    for path, mode in (("/tmp", 0o1777), ("/dev/shm", 0o1777)):
        try:
            os.makedirs(path, exist_ok=True)
            os.chmod(path, mode)
        except OSError:
            continue  # mounted read-only, or another user's: leave it as the image has it
    for name, uid in (("agent", AGENT_UID), ("tests", TESTS_UID)):
        append("/etc/passwd", f":{uid}:", f"{name}:x:{uid}:{uid}::{home}:/bin/sh\n")
        append("/etc/group", f":{uid}:", f"{name}:x:{uid}:\n")


def append(path: str, mark: str, line: str) -> None:
    """Append a line to a file unless the file contains `mark`; do nothing if it cannot be written."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
    except OSError:
        return
    with open(fd, encoding="utf-8", errors="replace") as file:
        if mark in file.read():
            return
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
    os.write(fd, line.encode())
    os.close(fd)
