"""Resets a sandbox: ends its processes, removes leftovers, then checks it against the baseline (`baseline.py`).

Runs in the resident, inside the sandbox, only on request. All processes of the agent have ended before a file is
touched, so nothing moves folders meanwhile; still no link is followed: removal uses descriptors of folders, one level
at a time, to any depth. It is a generator, so that the resident keeps listening: it yields the seconds to wait, mostly
0."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import time
from itertools import islice

from ale_sandbox.resident.frames import DONE, FAILED
from ale_sandbox.resident.privileges import as_user, libc
from ale_sandbox.resident.reset.baseline import Baseline, Place, Unclean
from ale_sandbox.resident.reset.kernel_state import read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ale_sandbox.resident.interface import Resident

DEADLINE_S = 10.0
"""A reset that takes longer is given up, because a new sandbox starts sooner."""
STEP_S = 0.005
"""The longest time in which a reset keeps the resident from listening."""
PATIENCE_S = 0.5
AT_ONCE, MOST_QUEUED = 1024, 100_000
IPC_RMID, SET_FLAGS = 0, 0x40086602
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Reset:
    """A reset in progress. `step` does a part of it."""

    def __init__(self, resident: Resident, call: int, env: dict[bytes, bytes]) -> None:
        self.resident, self.call, self.env = resident, call, env
        if isinstance(resident.baseline, OSError):
            raise resident.baseline
        if resident.baseline is None:
            raise OSError(95, "without isolation it cannot be checked that a sandbox is like new")
        if env[b"HOME"] != resident.env[b"HOME"]:
            raise OSError(22, "it was started with another HOME")
        self.steps = clean_up(resident, resident.baseline)
        self.pause_until = 0.0
        self.until = time.monotonic() + DEADLINE_S

    def seconds_to_wait(self) -> float:
        """Return the seconds until there is something to do."""
        return max(0.0, self.pause_until - time.monotonic())

    def step(self) -> bool:
        """Continue for a moment; return whether the reset is finished and answered."""
        began = time.monotonic()
        try:
            while time.monotonic() < began + STEP_S:
                pause = next(self.steps)
                if pause:
                    self.pause_until = time.monotonic() + pause
                    return False
            if time.monotonic() > self.until:
                raise Unclean("files", f"it could not be cleared and checked within {DEADLINE_S:.0f} s")
            return False
        except StopIteration:
            self.resident.env, self.resident.used = self.env, False
            self.resident.keep_relay()
            self.resident.send(self.call, DONE, [])
        except Exception as error:  # after any error the sandbox is not known to be clean
            code, reason = (error.errno, error.strerror) if isinstance(error, OSError) else (0, None)
            self.resident.send(self.call, FAILED, [str(code or 0).encode(), (reason or repr(error)).encode()])
        return True


def clean_up(resident: Resident, baseline: Baseline) -> Iterator[float]:
    """Bring a sandbox back to its baseline. Raises `Unclean`, or another `OSError`, if that cannot be shown."""
    resident.kill_all()
    resident.forget_all()
    drain(resident)
    if resident.used:
        for place in baseline.places:
            yield from sweep(place)
        remove_shared_memory(baseline)
    until = time.monotonic() + PATIENCE_S
    while (difference := baseline.difference()) is not None:
        if not difference.passes or time.monotonic() > until:
            raise difference
        yield 0.002
    if resident.used:
        yield from baseline.younger_files()


# --- files


def sweep(place: Place) -> Iterator[float]:
    """Remove the new entries of a place; restore its folders' modes, attributes and times."""
    folders, children = place.folders(), place.children()
    for name in folders:
        fd = enter_folder(place.full(name))
        try:
            yield from remove_new_entries(fd, children.get(name, set()))
        finally:
            os.close(fd)
    for name in reversed(folders):
        restore(place, name)


def remove_new_entries(folder: int, keep: set[str]) -> Iterator[float]:
    """Remove everything in a folder except the names in `keep`."""
    while True:
        with os.scandir(folder) as entries:
            some = list(islice((e for e in entries if e.name not in keep), AT_ONCE))
        if not some:
            return
        for entry in some:
            if entry.is_dir(follow_symlinks=False):
                yield from remove_folder(folder, entry.name)
            else:
                remove(os.unlink, entry.name, folder)
        yield 0.0


def remove_folder(parent: int, name: str) -> Iterator[float]:
    """Remove a folder with its content, however deep; at most two descriptors are open."""
    path: list[tuple[str, list[str]]] = [(name, [])]
    """The path down to the open folder: each folder's name, and its subfolders still to be removed."""
    fd = enter_folder(name, parent)
    try:
        while path:
            name, inside = path[-1]
            if not inside:
                with os.scandir(fd) as entries:
                    some = list(islice(entries, AT_ONCE))
                for entry in some:
                    if entry.is_dir(follow_symlinks=False):
                        inside.append(entry.name)
                    else:
                        remove(os.unlink, entry.name, fd)
                if not some:
                    path.pop()
                    fd = replace_descriptor(fd, os.open("..", FOLDER, dir_fd=fd) if path else os.dup(parent))
                    remove(os.rmdir, name, fd)
            while inside and remove_if_empty(inside[-1], fd):
                inside.pop()
            if inside:
                path.append((inside.pop(), []))
                fd = replace_descriptor(fd, enter_folder(path[-1][0], fd))
            yield 0.0
    finally:
        os.close(fd)


def replace_descriptor(old: int, new: int) -> int:
    """Close the old descriptor and return the new one."""
    os.close(old)
    return new


def enter_folder(name: str, parent: int | None = None) -> int:
    """Open a folder, even one closed to its own owner. Raises `Unclean` if it is no folder any more."""
    try:
        return os.open(name, FOLDER, dir_fd=parent)
    except PermissionError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise
        os.chmod(name, 0o700, dir_fd=parent)  # no process is left that could replace it by a link
        return os.open(name, FOLDER, dir_fd=parent)
    except OSError as error:
        raise Unclean("files", f"the folder {name!a} is gone ({error.strerror})") from None


def remove_if_empty(name: str, folder: int) -> bool:
    """Remove a folder if it is empty; return whether it was."""
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError:
        return False
    return True


def remove(how: Callable[..., None], name: str, folder: int) -> None:
    """Remove an entry. In a sticky folder root may not remove another user's entry, but either owner may."""
    try:
        how(name, dir_fd=folder)
    except PermissionError:
        parent = os.fstat(folder)
        try:
            as_user(parent.st_uid, parent.st_gid, os.fchmod, folder, 0o700)
            how(name, dir_fd=folder)
        except PermissionError:  # the folder's owner is unknown in the sandbox
            owner = os.stat(name, dir_fd=folder, follow_symlinks=False)
            as_user(owner.st_uid, owner.st_gid, how, name, dir_fd=folder)


def restore(place: Place, name: str) -> None:
    """Restore a recorded folder's mode, attributes, flags and times."""
    fd = enter_folder(place.full(name))
    try:
        found = os.fstat(fd)
        mode, _, _, attributes, flags = place.entries[name]
        now, _ = place.record_entry(f"/proc/self/fd/{fd}/.", found, 0)

        def change() -> None:
            if now[4] != flags:
                set_flags(fd, flags)
            if now[3] != attributes:
                os.fchmod(fd, 0o700)
                for key in os.listxattr(fd):
                    os.removexattr(fd, key)
                for key, value in attributes:
                    os.setxattr(fd, key, value)
            os.fchmod(fd, stat.S_IMODE(mode))
            os.utime(fd, ns=place.times[name])

        if now != place.entries[name] or (found.st_atime_ns, found.st_mtime_ns) != place.times[name]:
            as_user(found.st_uid, found.st_gid, change)
    except PermissionError:
        return  # its owner is unknown in the sandbox, so the agent could not change it either
    finally:
        os.close(fd)


# --- other leftovers


def remove_shared_memory(baseline: Baseline) -> None:
    """Remove System V segments, queues and semaphores as their owners."""
    for kind in ("shm", "msg", "sem"):
        header, *lines = [line.split() for line in read(f"/proc/sysvipc/{kind}").splitlines()] or [[]]
        for line in lines:
            values = dict(zip(header, line, strict=False))
            number = int(line[1])
            if f"{kind} {number}" not in baseline.facts["memory"]:
                as_user(int(values[b"uid"]), int(values[b"gid"]), remove_segment, kind, number)


def set_flags(fd: int, flags: int) -> None:
    """Set a folder's flags, if its file system has any; a later check finds out whether this worked."""
    try:
        fcntl.ioctl(fd, SET_FLAGS, flags.to_bytes(8, sys.byteorder))
    except OSError:
        return


def remove_segment(kind: str, number: int) -> None:
    """Remove one segment, queue or semaphore."""
    if kind == "sem":
        libc("semctl", number, 0, IPC_RMID)
    else:
        libc("shmctl" if kind == "shm" else "msgctl", number, IPC_RMID, None)


def drain(resident: Resident) -> None:
    """Drop what the agent sent to the sandbox's sockets and nothing has read yet: the next relay would read it."""
    if resident.relay is None:
        return
    sockets = resident.relay.sockets
    listening = [sock for sock, _ in sockets.listeners]
    for sock in sockets.all():
        for _ in range(MOST_QUEUED):
            try:
                if sock in listening:
                    os.close(sock._accept()[0])  # type: ignore[attr-defined]  # what `socket.socket.accept` is made of
                else:
                    sock.recv(1)
            except BlockingIOError:
                break
            except OSError:
                continue  # this connection has failed; the next one may be fine
