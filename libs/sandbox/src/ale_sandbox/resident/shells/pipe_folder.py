"""The folder of a shell's named pipes and of the state that bash saves. Runs in the resident, inside the sandbox.

The folder belongs to the shell's user and is closed to others. The resident works in it with that user's rights,
through a descriptor and without following links. The user can change anything there, so the resident repairs it."""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ale_sandbox.resident.interface import Resident

WHOLE = b"\n#whole\n"
"""The last line of a completely written state."""
STATE_BYTES = 1 << 24
"""A larger state is not stored."""
OUTPUT = ("o", "e")


class PipeFolder:
    """The folder of one shell, made when it is needed."""

    def __init__(self, resident: Resident, user: bytes) -> None:
        self.rights, self.user = resident.rights, user
        self.path = ""
        self.fd: int | None = None
        self.state: int | None = None
        """The latest complete state."""
        home, tmp = (os.fsdecode(resident.env.get(name, b"/")) for name in (b"HOME", b"TMPDIR"))
        if os.getpid() == 1:
            self.places = ["/dev/shm", "/tmp", tmp, home, resident.workdir]
        else:  # without isolation: a folder that is removed with the sandbox
            self.places = [os.path.join(os.path.dirname(resident.workdir), "tmp"), tmp, "/tmp"]

    def pipes(self) -> list[int]:
        """Make named pipes for stdout and stderr and open them for reading. Raises `OSError`."""
        self.rights.take(self.user)
        try:
            if self.exists():
                try:
                    return self.make_pipes()
                except OSError:
                    pass
            self.make()
            return self.make_pipes()
        finally:
            self.rights.give_back()

    def exists(self) -> bool:
        """Return whether the folder is still where it was made."""
        if self.fd is None:
            return False
        try:
            return os.path.samestat(os.lstat(self.path), os.fstat(self.fd))
        except OSError:
            return False

    def make(self) -> None:
        """Make the folder at the first path where that is possible."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
        name = f".ale-{os.urandom(8).hex()}"
        for number, place in enumerate(self.places):
            path = os.path.join(place, name)
            try:
                os.mkdir(path, 0o700)
                self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                self.path = path
                return
            except OSError:
                if number == len(self.places) - 1:
                    raise

    def make_pipes(self) -> list[int]:
        """Make the pipes in the existing folder."""
        pipes: list[int] = []
        try:
            for name in OUTPUT:
                self.remove(name)
                os.mkfifo(name, 0o600, dir_fd=self.fd)
                pipes.append(self.open_entry(name))
                if not stat.S_ISFIFO(os.fstat(pipes[-1]).st_mode):
                    raise OSError(5, "something else was put in the place of a named pipe")
        except OSError:
            for pipe in pipes:
                os.close(pipe)
            raise
        return pipes

    def open_entry(self, name: str) -> int:
        """Open an entry for reading, whatever it is, without blocking."""
        return os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)

    def remove(self, name: str) -> None:
        """Remove an entry."""
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            return

    def remove_pipes(self) -> None:
        """Remove the names of the pipes; processes that have them open keep them."""
        if self.fd is None:
            return
        self.rights.take(self.user)
        try:
            for name in OUTPUT:
                self.remove(name)
        except OSError:
            return  # another process made it
        finally:
            self.rights.give_back()

    def take_state(self) -> None:
        """Take the state that the shell has written, if it is complete."""
        if self.fd is None:
            return
        self.rights.take(self.user)
        try:
            fd = self.open_entry("s")
            found = os.fstat(fd)
            end = found.st_size - len(WHOLE)
            if stat.S_ISREG(found.st_mode) and 0 < end <= STATE_BYTES and os.pread(fd, len(WHOLE), end) == WHOLE:
                self.forget_state()
                self.state = fd
            else:
                os.close(fd)
            self.remove("s")
        except OSError:
            return  # there is none, or another process made it
        finally:
            self.rights.give_back()

    def forget_state(self) -> None:
        """Drop the state."""
        if self.state is not None:
            os.close(self.state)
            self.state = None

    def close(self) -> None:
        """Remove the folder; entries that others put into it stay."""
        self.forget_state()
        if self.fd is None:
            return
        self.rights.take(self.user)
        try:
            for name in (*OUTPUT, "s"):
                self.remove(name)
            os.rmdir(self.path)
        except OSError:
            pass
        finally:
            self.rights.give_back()
        os.close(self.fd)
        self.fd = None
