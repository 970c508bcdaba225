"""Shells that live across commands. Used by the resident, inside the sandbox.

1. A *keeper* (`keeper.py`) starts the shell and adopts what it leaves behind; the shell runs `script.py`.
2. Each command has two named pipes of its own (`folder.py`), so what an earlier command's background job writes is never
   taken for its output.
3. When a shell ends, by a command of its own or because it did not heed its time-out, the next command gets a new one with
   the state that it left: a file that bash wrote, or a copy of itself that waits to take over.
4. A time-out ends what has come to be below the keeper since the command began, and is not below what was there before.
5. What a shell tells of itself may be forged by its commands, as these are the same user: it is read in bounded pieces,
   checked against what was asked, and decides about nothing but this shell.
"""

from __future__ import annotations

import _signal as sig  # type: ignore[import-not-found]
import os
import select
import time

from ale_resident.inside import script
from ale_resident.inside.folder import Folder
from ale_resident.inside.keeper import Keeper
from ale_resident.inside.lines import Lines
from ale_resident.inside.resident import Command
from ale_resident.inside.tree import await_end, family, kill_below, kill_new, send_signal, stop
from ale_resident.inside.wire import DATA, DONE, SHELL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ale_resident.inside.resident import Resident
    from ale_resident.inside.tree import Family

HEED_S = 1.0
"""How long a shell may take to leave what it is doing, at a time-out."""
START_S = 10.0
"""One that is not ready by then hangs."""
GONE, STARTING, READY, BUSY = range(4)


def serve(resident: Resident, call: int, kind: bytes, fields: list[bytes]) -> None:
    """Open a shell, or run a command in one."""
    if kind == SHELL:
        user, cwd, *pairs = fields
        env = resident.env | {name: value for name, _, value in (pair.partition(b"=") for pair in pairs)}
        shell = resident.shells[call] = Shell(resident, call, user, os.fsdecode(cwd), env)
        resident.send(call, DATA, [str(call).encode()])
        shell.start()  # so that the first command finds it ready
        return
    number, timeout_s, cap, text = fields
    found = resident.shells.get(int(number))
    if found is None:
        raise OSError(9, "the shell is closed")
    run = resident.commands[call] = Run(found, call, int(cap), time.monotonic() + float(timeout_s), text)
    found.queue.append(run)
    found.go_on()


class Run(Command):
    """A command in a shell."""

    def __init__(self, shell: Shell, call: int, cap: int, deadline: float, text: bytes) -> None:
        super().__init__(call, 0, (), cap, deadline)
        self.shell, self.text = shell, text
        self.buffers = [bytearray(), bytearray()]
        self.before: Family = {}
        """What was below the keeper when it began, but for the shell."""
        self.tries = 0
        self.sealed = False
        """Its time is up: what comes now is the shell's own report of what was killed."""

    def keep(self, fd: int, data: bytes) -> None:
        if not self.sealed:
            super().keep(fd, data)

    def let_go(self) -> None:
        if self.answered:  # else it is cancelled, and ends first
            self.shell.over(self)

    def kill(self) -> float:
        self.tries += 1
        return self.shell.end_run(self)


class Shell:
    """A shell, or what is left of it until the next command."""

    def __init__(self, resident: Resident, call: int, user: bytes, cwd: str, env: dict[bytes, bytes]) -> None:
        self.resident, self.call, self.user = resident, call, user
        self.cwd, self.env = cwd, env
        self.phase = GONE
        self.began = 0.0
        self.keeper = self.pid = self.copy = 0
        """Processes: above it, itself, and the copy of it that waits."""
        self.stale: set[int] = set()
        """Copies before that one, which have been killed."""
        self.serial = self.last = 0
        """Of the latest start or command; the exit code of the latest command."""
        self.copies_due = 0
        """So many copies may yet be told of: one before a command ends and one when the shell does."""
        self.run: Run | None = None
        self.queue: list[Run] = []
        self.fault = b""
        self.folder = Folder(resident, user)
        self.text, self.state = os.memfd_create("command"), os.memfd_create("state")
        self.commands = self.takeover = self.orders = -1
        """Ends of pipes that are written to: to it, to its copy, to the keeper."""
        self.lines: list[Lines] = []
        """What the shell says, and what the keeper says."""

    # --- commands

    def go_on(self) -> None:
        """Give it the next command, or start it for that one."""
        while self.run is None and self.queue:
            if self.queue[0].exit_code is not None:
                self.queue.pop(0)  # its time was up before its turn came
            elif self.phase == READY and self.pid:
                self.begin(self.queue.pop(0))
            elif self.phase != GONE or self.start():
                return

    def begin(self, run: Run) -> None:
        """Give it a command."""
        self.run, self.phase = run, BUSY
        self.serial, self.copies_due = self.serial + 1, 2
        try:
            run.pipes = dict(zip(self.folder.pipes(), run.buffers, strict=True))
            for fd in run.pipes:
                self.resident.by_fd[fd] = run
                self.resident.newborn.add(fd)
                self.resident.poll.register(fd, select.EPOLLIN)
            replace(self.text, script.command(self.serial, self.last, os.fsencode(self.folder.path), run.text))
            run.before = family(self.keeper)
            run.before.pop(self.pid, None)
            os.write(self.commands, script.GO)
        except OSError as error:
            self.phase = READY
            self.fail(run, f"The sandbox cannot give the shell its command: {error.strerror}.\n".encode())

    def fail(self, run: Run, reason: bytes, code: int = 1) -> None:
        """A command could not be run."""
        run.buffers[1] += reason
        self.resident.finish(run, code)

    def over(self, run: Run) -> None:
        """A command has been answered."""
        if run is self.run:
            self.run = None
            self.folder.remove_pipes()
            self.go_on()

    def end_run(self, run: Run) -> float:
        """A command's time is up, or nobody wants it any more; seconds after which to try harder."""
        if run is not self.run:
            self.resident.finish(run, 137)
            if self.phase == STARTING and self.pid and time.monotonic() > self.began + START_S:
                send_signal(self.pid, sig.SIGKILL)
        elif run.tries == 1 and self.pid:
            stop(self.pid)
            self.end_children(run)
            send_signal(self.pid, sig.SIGPWR)
            send_signal(self.pid, sig.SIGCONT)
        elif run.tries == 2 and self.pid in family(self.keeper):
            stop(self.pid)
            self.end_children(run)
            send_signal(self.pid, sig.SIGKILL)
        else:
            self.end()
        return HEED_S

    def end_children(self, run: Run) -> None:
        """End what a command has started, while the shell stands still; its output up to then counts."""

        def seal() -> None:
            for fd in list(run.pipes) if not run.sealed else ():
                for _ in range(32):
                    if fd in run.pipes:
                        self.resident.drain(fd)
            run.sealed = True

        kill_new(self.keeper, run.before, self.pid, seal)

    # --- its process

    def start(self) -> bool:
        """Have the keeper start it, with what the one before has left; whether there is something to wait for."""
        self.serial, self.copies_due = self.serial + 1, 2
        try:
            if not self.keeper:
                self.start_keeper()
            order = b"new"
            if self.folder.state is not None:
                self.restore(self.folder.state)
                order = b"restore"
            elif self.copy in family(self.keeper):
                order = b"watch %d" % self.copy
            replace(self.text, script.setup(self.serial))
            os.write(self.orders, order)
            self.phase, self.began = STARTING, time.monotonic()
        except OSError as error:
            if self.queue:
                reason = f"The sandbox cannot start a process: {error.strerror} (the limit of processes is reached).\n"
                self.fail(self.queue.pop(0), reason.encode())
        return self.phase == STARTING

    def start_keeper(self) -> None:
        """Fork it, and be ready to hear what it and the shell have to say."""
        pipes = [os.pipe() for _ in range(5)]
        (commands, self.commands), (takeover, self.takeover), (orders, self.orders) = pipes[:3]
        (heard, status), (told, news) = pipes[3:]
        try:
            pid = os.fork()
        except OSError:
            for fd in (fd for pipe in pipes for fd in pipe):
                os.close(fd)
            raise
        if pid == 0:
            fds = [self.state, takeover, self.text, commands, status]
            Keeper(self.resident, self.user, self.cwd, self.env, fds, orders, news).run()
        for fd in (commands, takeover, orders, status, news):
            os.close(fd)
        for fd in (self.commands, self.takeover, self.orders):
            os.set_blocking(fd, False)
        self.keeper, self.copy = pid, 0
        self.lines = [
            Lines(self.resident, heard, self.hear, self.end),
            Lines(self.resident, told, self.learn, self.end),
        ]

    def learn(self, words: list[bytes]) -> None:
        """The keeper's words: `p PID`, a shell runs; `f ...`, why one does not; `x CODE`, it has ended."""
        if words[0] == b"f":
            self.fault = b" ".join(words[1:]) + b"\n"
        elif words[0] == b"x":
            self.pid = 0
            self.lines[0].read()  # what it said before
            self.ended(int(words[1]))
        elif words[0] == b"p":
            self.pid = int(words[1])
            if self.pid == self.copy:
                self.copy = 0
                await_end(
                    self.keeper, self.stale
                )  # one that is being killed could still read what is meant for another
                self.stale.clear()
                os.write(self.takeover, b"%d\n" % self.serial)
            else:
                os.write(self.commands, script.START)

    def hear(self, words: list[bytes]) -> None:
        """The shell's words: `r N`, it is ready; `d N BEGUN CODE`, a command is done, and the latest that was begun; `s N`, its
        state is kept; `k N PID`, its copy."""
        if len(words) < 2 or not all(word.isdigit() and len(word) < 10 for word in words[1:]):
            return
        what, serial, number = words[0], int(words[1]), int(words[-1])
        if what == b"k" and self.copies_due:
            self.copies_due -= 1
            self.take_copy(number)
        elif serial != self.serial:
            return
        elif what == b"d" and self.run is not None and self.run.exit_code is None:
            self.last = 124 if self.run.timed_out else number & 0xFF
            if words[-2] != words[1]:
                self.run.buffers[1] += b"The shell's named pipes were removed before the command began; run it again.\n"
            self.resident.finish(self.run, self.last)
        elif (what == b"r" and self.phase == STARTING) or (what == b"s" and self.phase == BUSY):
            if what == b"r":
                os.ftruncate(self.state, 0)
            else:
                self.folder.take_state()
            self.phase = READY
            self.go_on()

    def take_copy(self, pid: int) -> None:
        """A copy of it waits; the one before is of no use any more. Nothing but what is below the keeper can be one."""
        below = family(self.keeper)
        if pid in below and pid != self.pid:
            if self.copy in below and self.copy != self.pid:
                send_signal(self.copy, sig.SIGKILL)
                self.stale.add(self.copy)
            self.copy = pid

    def restore(self, state: int) -> None:
        """Give the next shell what the one before has left."""
        os.ftruncate(self.state, 0)
        at = 0
        while piece := os.pread(state, 1 << 16, at):
            at += os.pwrite(self.state, piece, at)

    def ended(self, code: int) -> None:
        """It is gone; what it left is there for the next one."""
        fault, self.fault = self.fault, b""
        run = self.run
        if self.phase == STARTING:
            self.folder.forget_state()  # in case it was that which it could not bear
            if run is None and self.queue:
                run = self.queue.pop(0)
                fault = fault or b"The shell ended before it was ready.\n"
        else:
            self.folder.take_state()
        self.pid, self.phase, self.last = 0, GONE, code
        if run is not None and run.exit_code is None:
            self.fail(run, fault, code)
        self.go_on()

    # --- its end

    def lost(self) -> None:
        """The keeper has been killed: with everything else, or by a command, and then all that it kept is the resident's."""
        self.keeper = 0
        if self.pid in family(os.getpid()):
            send_signal(self.pid, sig.SIGKILL)
        for lines in self.lines:
            lines.close()
        for fd in (self.commands, self.takeover, self.orders):
            os.close(fd)
        self.lines = []
        self.pid, self.phase, self.last, self.fault = 0, GONE, 137, b""
        queue, self.queue = self.queue, []
        for run in (*queue, *filter(None, [self.run])):
            if run.exit_code is None:
                self.resident.finish(run, 137)

    def end(self) -> None:
        """End it and everything that it has started."""
        if self.keeper:
            stop(self.keeper)
            kill_below(self.keeper)
            send_signal(self.keeper, sig.SIGKILL)
            os.waitpid(self.keeper, 0)
            self.lost()

    def close(self) -> None:
        """End it for good, and answer the call that it was."""
        del self.resident.shells[self.call]
        self.end()
        self.run, self.queue = None, []
        self.folder.close()
        for fd in (self.text, self.state):
            os.close(fd)
        self.resident.send(self.call, DONE, [b"0"])


def replace(fd: int, content: bytes) -> None:
    """Make it all that is in a file."""
    os.ftruncate(fd, 0)
    at = 0
    while at < len(content):
        at += os.pwrite(fd, content[at : at + (1 << 20)], at)
