"""What an image may lack: the work folder, a home, the users' names, a shell. Used by the resident, inside a container."""

from __future__ import annotations

import os

from ale_resident.inside.rights import AGENT_UID, TESTS_UID

SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh", "/usr/bin/sh")


def find_shell(wanted: str) -> str:
    """The shell that was asked for, or the first one that there is."""
    for shell in (wanted,) if wanted else SHELLS:
        if os.access(shell, os.X_OK):
            return shell
    raise FileNotFoundError(2, f"the image has no {wanted or 'shell (looked for ' + ', '.join(SHELLS) + ')'}")


def make(workdir: str, home: str, owned: bool) -> None:
    """Make the folders, the agent's own where it is a user of its own; give users a name that have none."""
    for path in (workdir, home):
        os.makedirs(path, exist_ok=True)
        if owned:
            os.chown(path, AGENT_UID, AGENT_UID)
    for path, mode in (("/tmp", 0o1777), ("/dev/shm", 0o1777)):
        try:
            os.makedirs(path, exist_ok=True)
            os.chmod(path, mode)
        except OSError:
            continue  # mounted read-only, or another's: then it is as the image wants it
    for name, uid in (("agent", AGENT_UID), ("tests", TESTS_UID)):
        append("/etc/passwd", f":{uid}:", f"{name}:x:{uid}:{uid}::{home}:/bin/sh\n")
        append("/etc/group", f":{uid}:", f"{name}:x:{uid}:\n")


def append(path: str, mark: str, line: str) -> None:
    """Add a line to a file that does not hold the mark yet; nothing where the file cannot be written."""
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
