"""Folders of a provider and the processes that own them; the next provider removes what a killed owner left.

A process is named by its id *and* its start time, because ids are used again.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from ale.errors import ConfigError
from ale_sandbox.resident.processes import kill_below, send_signal, stop


def start_time(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; 0 if there is none (or only a zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def process_name(pid: int) -> str:
    """Return the name that marks what a process leaves behind: its id and its start time."""
    return f"{pid}-{start_time(pid)}"


def this_process() -> str:
    """Return the name of this process."""
    return process_name(os.getpid())


def is_running(process: str) -> bool:
    """Return whether the process of this name runs."""
    pid, _, started = process.partition("-")
    return pid.isdigit() and started.isdigit() and start_time(int(pid)) == int(started) != 0


def end_process(process: str) -> None:
    """End the process of this name, which another process may have started, and all its descendants: a resident adopts
    what its commands leave behind."""
    if is_running(process):
        pid = int(process.partition("-")[0])
        stop(pid)
        kill_below(pid)
        send_signal(pid, signal.SIGKILL)


def state_folder(name: str) -> Path:
    """Return this user's state folder of a provider, and make it if it is missing."""
    path = Path(tempfile.gettempdir()) / f"ale-{name}-{os.getuid()}"
    # Other users, such as the sandbox's, may pass through the folder but not list it.
    path.mkdir(mode=0o711, exist_ok=True)
    found = path.lstat()
    if found.st_uid != os.getuid() or not path.is_dir() or path.is_symlink():
        raise ConfigError(f"{path} is not a folder of this user; remove it or set TMPDIR to a folder of your own.")
    path.chmod(0o711)
    return path


def new_base(folder: Path) -> Path:
    """Make a folder of this process inside the state folder, for what lasts as long as a provider."""
    base = Path(tempfile.mkdtemp(prefix=f"base-{this_process()}-", dir=folder))
    base.chmod(0o755)
    return base


def reclaim_bases(folder: Path) -> None:
    """Remove the folders of processes that have ended."""
    for path in folder.glob("base-*"):
        if not is_running("-".join(path.name.split("-")[1:3])):
            remove_folder(path)


def remove_folder(path: Path) -> None:
    """Remove a folder, however deep it is and whatever modes the agent set in it. Several processes may remove the
    same folder at the same time."""
    try:
        for parent, names, _ in os.walk(path):
            for place in (parent, *(os.path.join(parent, name) for name in names)):
                with suppress(FileNotFoundError):  # another process removed it
                    if not os.path.islink(place):
                        os.chmod(place, 0o700)
        shutil.rmtree(path, ignore_errors=True)
    except RecursionError:  # these programs can go to any depth
        for command in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
            subprocess.run([*command, "--", str(path)], capture_output=True, check=False)
