"""Folders of a provider, and whose they are: what a killed owner left is found and removed by the next one.

A process is named by its id *and* its start time, for ids are used again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from ale.errors import ConfigError


def start_time(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 where there is none (or only a zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def this_process() -> str:
    """This process, as it is named where it leaves something: its id and its start time."""
    return f"{os.getpid()}-{start_time(os.getpid())}"


def runs(process: str) -> bool:
    """Whether the process of this name runs."""
    pid, _, started = process.partition("-")
    return pid.isdigit() and started.isdigit() and start_time(int(pid)) == int(started) != 0


def state_folder(name: str) -> Path:
    """The folder of this user for what is called `name`, made where it is missing."""
    path = Path(tempfile.gettempdir()) / f"ale-{name}-{os.getuid()}"
    # Others may pass through it (the sandbox's users are others) but not look around.
    path.mkdir(mode=0o711, exist_ok=True)
    found = path.lstat()
    if found.st_uid != os.getuid() or not path.is_dir() or path.is_symlink():
        raise ConfigError(f"{path} is not a folder of this user; remove it or set TMPDIR to a folder of your own.")
    path.chmod(0o711)
    return path


def new_base(folder: Path) -> Path:
    """A folder of this process inside the state folder, for what lasts as long as a provider."""
    base = Path(tempfile.mkdtemp(prefix=f"base-{this_process()}-", dir=folder))
    base.chmod(0o755)
    return base


def reclaim_bases(folder: Path) -> None:
    """Remove the folders of processes that are gone."""
    for path in folder.glob("base-*"):
        if not runs("-".join(path.name.split("-")[1:3])):
            remove_folder(path)


def remove_folder(path: Path) -> None:
    """Remove a folder whatever modes the agent gave to what is in it, and however deep it is."""
    try:
        for parent, names, _ in os.walk(path):
            os.chmod(parent, 0o700)
            for name in names:
                child = os.path.join(parent, name)
                if not os.path.islink(child):
                    os.chmod(child, 0o700)
        shutil.rmtree(path, ignore_errors=True)
    except RecursionError:  # these programs go to any depth
        for command in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
            subprocess.run([*command, "--", str(path)], capture_output=True, check=False)
