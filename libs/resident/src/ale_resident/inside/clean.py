"""Make a sandbox fresh again: end what runs, remove what was left, then look whether anything is (`fresh.py`).

Used by the resident, inside the sandbox, and only when it is asked for. Everything of the agent's has been ended before a file is
touched, so nobody moves folders about meanwhile; still nothing is followed: removal goes by descriptors of folders, one level
at a time, as deep as an agent could dig. It is a generator, so that the resident goes on listening: it yields the seconds in
which there is nothing to do, mostly 0.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import time
from itertools import islice

from ale_resident.inside.fresh import Fresh, Place, Unclean
from ale_resident.inside.rights import as_user, libc
from ale_resident.inside.sight import read
from ale_resident.inside.wire import DONE, FAILED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ale_resident.inside.resident import Resident

DEADLINE_S = 10.0
"""What takes longer than this to remove and to look through is not worth it: a new sandbox is there sooner."""
STEP_S = 0.005
"""How long the resident does not listen meanwhile."""
PATIENCE_S = 0.5
AT_ONCE, MOST_QUEUED = 1024, 100_000
IPC_RMID, SET_FLAGS = 0, 0x40086602
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Reset:
    """A reset under way. `step` does a part of it."""

    def __init__(self, resident: Resident, call: int, env: dict[bytes, bytes]) -> None:
        self.resident, self.call, self.env = resident, call, env
        if isinstance(resident.fresh, OSError):
            raise resident.fresh
        if resident.fresh is None:
            raise OSError(95, "without isolation it cannot be told whether a sandbox is as new")
        if env[b"HOME"] != resident.env[b"HOME"]:
            raise OSError(22, "another HOME was made at its start")
        self.steps = cleaned(resident, resident.fresh)
        self.pause_until = 0.0
        self.until = time.monotonic() + DEADLINE_S

    def patience(self) -> float:
        """Seconds until there is something to do."""
        return max(0.0, self.pause_until - time.monotonic())

    def step(self) -> bool:
        """Go on for a moment; whether it is over, and answered."""
        began = time.monotonic()
        try:
            while time.monotonic() < began + STEP_S:
                pause = next(self.steps)
                if pause:
                    self.pause_until = time.monotonic() + pause
                    return False
            if time.monotonic() > self.until:
                raise Unclean("files", f"it could not be cleared and looked through within {DEADLINE_S:.0f} s")
            return False
        except StopIteration:
            self.resident.env, self.resident.used = self.env, False
            self.resident.keep_relay()
            self.resident.send(self.call, DONE, [])
        except Exception as error:  # whatever it is, the sandbox is not shown to be clean
            code, reason = (error.errno, error.strerror) if isinstance(error, OSError) else (0, None)
            self.resident.send(self.call, FAILED, [str(code or 0).encode(), (reason or repr(error)).encode()])
        return True


def cleaned(resident: Resident, fresh: Fresh) -> Iterator[float]:
    """Bring a sandbox back to what it was. Raises `Unclean`, or another `OSError`, where that cannot be shown."""
    resident.kill_all()
    resident.forget_all()
    drain(resident)
    if resident.used:
        for place in fresh.places:
            yield from sweep(place)
        remove_shared_memory(fresh)
    until = time.monotonic() + PATIENCE_S
    while (difference := fresh.difference()) is not None:
        if not difference.passes or time.monotonic() > until:
            raise difference
        yield 0.002
    if resident.used:
        yield from fresh.younger_files()


# --- files


def sweep(place: Place) -> Iterator[float]:
    """Remove what is in a place and was not; give its folders their modes, attributes and times back."""
    folders, children = place.folders(), place.children()
    for name in folders:
        fd = entered(place.full(name))
        try:
            yield from remove_strangers(fd, children.get(name, set()))
        finally:
            os.close(fd)
    for name in reversed(folders):
        restore(place, name)


def remove_strangers(folder: int, keep: set[str]) -> Iterator[float]:
    """Remove everything in a folder but what is to be kept."""
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
    """Remove a folder with all that is in it, however deep it is; two descriptors are open at most."""
    path: list[tuple[str, list[str]]] = [(name, [])]
    """From the first folder down to the one that is open: its name, and folders in it that are still to be removed."""
    fd = entered(name, parent)
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
                    fd = swapped(fd, os.open("..", FOLDER, dir_fd=fd) if path else os.dup(parent))
                    remove(os.rmdir, name, fd)
            while inside and removed_at_once(inside[-1], fd):
                inside.pop()
            if inside:
                path.append((inside.pop(), []))
                fd = swapped(fd, entered(path[-1][0], fd))
            yield 0.0
    finally:
        os.close(fd)


def swapped(old: int, new: int) -> int:
    """The new descriptor, the old one closed."""
    os.close(old)
    return new


def entered(name: str, parent: int | None = None) -> int:
    """Open a folder, also one that is closed to its own owner. Raises `Unclean` where it is none any more."""
    try:
        return os.open(name, FOLDER, dir_fd=parent)
    except PermissionError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise
        os.chmod(name, 0o700, dir_fd=parent)  # nobody is there to exchange it for a link meanwhile
        return os.open(name, FOLDER, dir_fd=parent)
    except OSError as error:
        raise Unclean("files", f"the folder {name!a} is gone ({error.strerror})") from None


def removed_at_once(name: str, folder: int) -> bool:
    """Remove a folder if it is empty; whether it was."""
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError:
        return False
    return True


def remove(how: Callable[..., None], name: str, folder: int) -> None:
    """Remove an entry. In a folder with the sticky bit root may not remove what is another's, but either owner may."""
    try:
        how(name, dir_fd=folder)
    except PermissionError:
        parent = os.fstat(folder)
        try:
            as_user(parent.st_uid, parent.st_gid, os.fchmod, folder, 0o700)
            how(name, dir_fd=folder)
        except PermissionError:  # the folder belongs to nobody who is known in here
            owner = os.stat(name, dir_fd=folder, follow_symlinks=False)
            as_user(owner.st_uid, owner.st_gid, how, name, dir_fd=folder)


def restore(place: Place, name: str) -> None:
    """Give a folder that was there its mode, attributes, flags and times back."""
    fd = entered(place.full(name))
    try:
        found = os.fstat(fd)
        mode, _, _, attributes, flags = place.entries[name]
        now, _ = place.seen(f"/proc/self/fd/{fd}/.", found, 0)

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
        return  # it belongs to nobody who is known in here, so the agent could not set anything either
    finally:
        os.close(fd)


# --- what is no file


def remove_shared_memory(fresh: Fresh) -> None:
    """Remove System V segments, queues and semaphores, each as its owner."""
    for kind in ("shm", "msg", "sem"):
        header, *lines = [line.split() for line in read(f"/proc/sysvipc/{kind}").splitlines()] or [[]]
        for line in lines:
            values = dict(zip(header, line, strict=False))
            number = int(line[1])
            if f"{kind} {number}" not in fresh.facts["memory"]:
                as_user(int(values[b"uid"]), int(values[b"gid"]), remove_segment, kind, number)


def set_flags(fd: int, flags: int) -> None:
    """Set a folder's flags, where its file system has some; whether that was so is seen later."""
    try:
        fcntl.ioctl(fd, SET_FLAGS, flags.to_bytes(8, sys.byteorder))
    except OSError:
        return


def remove_segment(kind: str, number: int) -> None:
    """One of them."""
    if kind == "sem":
        libc("semctl", number, 0, IPC_RMID)
    else:
        libc("shmctl" if kind == "shm" else "msgctl", number, IPC_RMID, None)


def drain(resident: Resident) -> None:
    """Drop what the agent sent to the sandbox's own sockets and nobody has taken yet: its relay would take it later."""
    network = resident.network
    if network is None:
        return
    listening = [sock for sock, _ in network.listeners]
    for sock in (*listening, *network.resolvers, *network.sniffers):
        for _ in range(MOST_QUEUED):
            try:
                if sock in listening:
                    os.close(sock._accept()[0])  # type: ignore[attr-defined]  # what `socket.socket.accept` is made of
                else:
                    sock.recv(1)
            except BlockingIOError:
                break
            except OSError:
                continue  # of one that has failed; the next one may be there all the same
