"""Where a shell's named pipes stand, and bash leaves its state. Used by the resident, inside the sandbox.

The folder belongs to the shell's user and is closed to others; all that is done in it is done with that user's rights, by a
descriptor, and without following links. A user can do there what it likes: what is not as it should be is made anew.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ale_resident.inside.resident import Resident

WHOLE = b"\n#whole\n"
"""The end of a state that was written to its end."""
STATE_BYTES = 1 << 24
"""A larger state is not kept."""
OUTPUT = ("o", "e")


class Folder:
    """Of one shell. It is made when it is needed."""

    def __init__(self, resident: Resident, user: bytes) -> None:
        self.rights, self.user = resident.rights, user
        self.path = ""
        self.fd: int | None = None
        self.state: int | None = None
        """The latest state that is whole."""
        home, tmp = (os.fsdecode(resident.env.get(name, b"/")) for name in (b"HOME", b"TMPDIR"))
        if os.getpid() == 1:
            self.places = ["/dev/shm", "/tmp", tmp, home, resident.workdir]
        else:  # without isolation: where what is left is removed with the sandbox
            self.places = [os.path.join(os.path.dirname(resident.workdir), "tmp"), tmp, "/tmp"]

    def pipes(self) -> list[int]:
        """New named pipes for stdout and stderr, open for reading. Raises `OSError`."""
        self.rights.take(self.user)
        try:
            if self.stands():
                try:
                    return self.made()
                except OSError:
                    pass
            self.make()
            return self.made()
        finally:
            self.rights.give_back()

    def stands(self) -> bool:
        """Whether it is still where it was made."""
        if self.fd is None:
            return False
        try:
            return os.path.samestat(os.lstat(self.path), os.fstat(self.fd))
        except OSError:
            return False

    def make(self) -> None:
        """Make it at the first place where that can be done."""
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

    def made(self) -> list[int]:
        """The pipes, in a folder that stands."""
        pipes: list[int] = []
        try:
            for name in OUTPUT:
                self.remove(name)
                os.mkfifo(name, 0o600, dir_fd=self.fd)
                pipes.append(self.opened(name))
                if not stat.S_ISFIFO(os.fstat(pipes[-1]).st_mode):
                    raise OSError(5, "something else was put in the place of a named pipe")
        except OSError:
            for pipe in pipes:
                os.close(pipe)
            raise
        return pipes

    def opened(self, name: str) -> int:
        """Open what is called `name` in it for reading, whatever it is, without waiting."""
        return os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)

    def remove(self, name: str) -> None:
        """Remove what is called `name` in it."""
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            return

    def remove_pipes(self) -> None:
        """Remove the names of the pipes; whoever has them open keeps them."""
        if self.fd is None:
            return
        self.rights.take(self.user)
        try:
            for name in OUTPUT:
                self.remove(name)
        except OSError:
            return  # of another's making
        finally:
            self.rights.give_back()

    def take_state(self) -> None:
        """Take the state that the shell has written, if it is whole."""
        if self.fd is None:
            return
        self.rights.take(self.user)
        try:
            fd = self.opened("s")
            found = os.fstat(fd)
            end = found.st_size - len(WHOLE)
            if stat.S_ISREG(found.st_mode) and 0 < end <= STATE_BYTES and os.pread(fd, len(WHOLE), end) == WHOLE:
                self.forget_state()
                self.state = fd
            else:
                os.close(fd)
            self.remove("s")
        except OSError:
            return  # there is none, or what is there is of another's making
        finally:
            self.rights.give_back()

    def forget_state(self) -> None:
        """Keep no state any more."""
        if self.state is not None:
            os.close(self.state)
            self.state = None

    def close(self) -> None:
        """Remove it; what others put into it stays."""
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
