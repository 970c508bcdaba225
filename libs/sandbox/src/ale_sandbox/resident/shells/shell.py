"""Persistent shells. Runs in the resident, inside the sandbox.

1. A *supervisor* (`supervisor.py`) starts the shell and adopts its orphans; the shell runs `script.py`.
2. Each command has its own two named pipes (`pipe_folder.py`), so the output of an earlier command's background job is
   never taken for its own.
3. When a shell ends, by a command or because it ignored a time-out, the next command gets a new shell with the old
   state: from a file that bash wrote, or from a copy of the shell that waits to take over.
4. A time-out kills the supervisor's descendants that are new since the command began and are not descendants of older
   processes.
5. After `set -n` a shell runs nothing more, and reports nothing. It still reads: the resident writes an empty line
   after each command's, and a shell that reads it without a report is replaced by one with the state from before.
6. Commands run as the shell's user, so they can forge its reports. These are read in bounded pieces, checked against
   what was asked, and affect only this shell.
"""

from __future__ import annotations

import _signal as sig  # type: ignore[import-not-found]
import fcntl
import os
import select
import sys
import time

from ale_sandbox.resident.command import Command
from ale_sandbox.resident.frames import DATA, DONE, SHELL
from ale_sandbox.resident.processes import await_end, family, kill_below, kill_new, send_signal, stop
from ale_sandbox.resident.shells import script
from ale_sandbox.resident.shells.line_reader import LineReader
from ale_sandbox.resident.shells.pipe_folder import PipeFolder
from ale_sandbox.resident.shells.supervisor import Supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ale_sandbox.resident.interface import Resident
    from ale_sandbox.resident.processes import Family

HEED_S = 1.0
"""How long a shell may take to leave its command at a time-out."""
START_S = 10.0
"""A shell that is not ready after this time counts as hanging."""
PAGE, SET_PIPE_SIZE, UNREAD = 4096, 1031, 0x541B
"""The size of the smallest pipe; the numbers by which `fcntl` sets it, and `ioctl` tells what is unread."""
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
        """The supervisor's descendants when the command began, except the shell."""
        self.tries = 0
        self.sealed = False
        """Set at the time-out: later output is the shell's own message about killed processes."""
        self.line_sent = self.unreported = False
        """Whether the empty line after the command's was sent, and whether the shell read it and said nothing."""

    def keep(self, fd: int, data: bytes) -> None:
        if not self.sealed:
            super().keep(fd, data)

    def let_go(self) -> None:
        if self.answered:  # else it is cancelled, and must end first
            self.shell.over(self)

    def kill(self) -> float:
        self.tries += 1
        return self.shell.end_run(self)


class Shell:
    """A shell, or the state that it left for the next command."""

    def __init__(self, resident: Resident, call: int, user: bytes, cwd: str, env: dict[bytes, bytes]) -> None:
        self.resident, self.call, self.user = resident, call, user
        self.cwd, self.env = cwd, env
        self.phase = GONE
        self.began = 0.0
        self.supervisor = self.pid = self.copy = 0
        """Process ids of the supervisor, the shell, and the waiting copy of the shell."""
        self.stale: set[int] = set()
        """Earlier copies, which have been killed."""
        self.serial = self.last = 0
        """The number of the latest start or command; the exit code of the latest command."""
        self.copies_due = 0
        """How many copies may still be reported: one before a command ends and one when the shell ends."""
        self.run: Run | None = None
        self.queue: list[Run] = []
        self.fault = b""
        self.folder = PipeFolder(resident, user)
        self.text, self.state = os.memfd_create("command"), os.memfd_create("state")
        self.commands = self.takeover = self.orders = -1
        """Writing ends of the pipes to the shell, to its copy and to the supervisor."""
        self.go = script.GO
        """The line that makes it run a command."""
        self.one_page = False
        """Whether the pipe to the shell has one page, so that it is known when the shell has read everything."""
        self.lines: list[LineReader] = []
        """Readers of the shell's and the supervisor's reports."""

    # --- commands

    def go_on(self) -> None:
        """Give the shell its next command, or start a shell for it."""
        while self.run is None and self.queue:
            if self.queue[0].exit_code is not None:
                self.queue.pop(0)  # its time-out came before its turn
            elif self.phase == READY and self.pid:
                self.begin(self.queue.pop(0))
            elif self.phase != GONE or self.start():
                return

    def begin(self, run: Run) -> None:
        """Give the shell a command."""
        self.run, self.phase = run, BUSY
        self.serial, self.copies_due = self.serial + 1, 2
        try:
            run.pipes = dict(zip(self.folder.pipes(), run.buffers, strict=True))
            for fd in run.pipes:
                self.resident.by_fd[fd] = run
                self.resident.newborn.add(fd)
                self.resident.poll.register(fd, select.EPOLLIN)
            replace(self.text, script.command(self.serial, self.last, os.fsencode(self.folder.path), run.text))
            run.before = family(self.supervisor)
            run.before.pop(self.pid, None)
            os.write(self.commands, self.go)
            self.watch_reading()
        except OSError as error:
            self.phase = READY
            self.fail(run, f"The sandbox cannot give the shell its command: {error.strerror}.\n".encode())

    def watch_reading(self) -> None:
        """Notice when the shell has read all that was written to it, which frees the only page of the pipe."""
        if self.one_page and self.commands not in self.resident.watched:
            self.resident.watched[self.commands] = self.has_read
            self.resident.poll.register(self.commands, select.EPOLLOUT)

    def forget_reading(self) -> None:
        """Do not watch the shell's reading any more."""
        if self.resident.watched.pop(self.commands, None) is not None:
            self.resident.poll.unregister(self.commands)

    def has_read(self) -> None:
        """Send the empty line once the shell has read the command's; end a shell that read both and says nothing."""
        if int.from_bytes(fcntl.ioctl(self.commands, UNREAD, bytes(4)), sys.byteorder):
            return  # something was written since the event
        self.forget_reading()
        run = self.run
        if self.phase != BUSY or run is None:
            return
        if not run.line_sent:
            run.line_sent = True
            try:
                os.write(self.commands, b"\n")
            except OSError:
                return  # the supervisor has ended, which is noticed elsewhere
            self.watch_reading()
            return
        self.lines[0].read()  # reports from before
        if run is self.run and run.exit_code is None and not run.timed_out and self.pid:
            run.unreported = True
            send_signal(self.pid, sig.SIGKILL)

    def fail(self, run: Run, reason: bytes, code: int = 1) -> None:
        """Answer a command that could not be run."""
        run.buffers[1] += reason
        self.resident.finish(run, code)

    def over(self, run: Run) -> None:
        """Continue after a command has been answered."""
        if run is self.run:
            self.run = None
            self.folder.remove_pipes()
            self.go_on()

    def end_run(self, run: Run) -> float:
        """End a command that timed out or was cancelled; return the seconds after which to use more force."""
        if run is not self.run:
            self.resident.finish(run, 137)
            if self.phase == STARTING and self.pid and time.monotonic() > self.began + START_S:
                send_signal(self.pid, sig.SIGKILL)
        elif run.tries == 1 and self.pid:
            stop(self.pid)
            self.end_children(run)
            send_signal(self.pid, sig.SIGPWR)
            send_signal(self.pid, sig.SIGCONT)
        elif run.tries == 2 and self.pid in family(self.supervisor):
            stop(self.pid)
            self.end_children(run)
            send_signal(self.pid, sig.SIGKILL)
        else:
            self.end()
        return HEED_S

    def end_children(self, run: Run) -> None:
        """Kill what a command has started while the shell is stopped; its output up to then is kept."""

        def seal() -> None:
            for fd in list(run.pipes) if not run.sealed else ():
                for _ in range(32):
                    if fd in run.pipes:
                        self.resident.drain(fd)
            run.sealed = True

        kill_new(self.supervisor, run.before, self.pid, seal)

    # --- its process

    def start(self) -> bool:
        """Make the supervisor start a shell with the old state; return whether to wait for it."""
        self.serial, self.copies_due = self.serial + 1, 2
        try:
            if not self.supervisor:
                self.start_supervisor()
            order = b"new"
            os.ftruncate(self.state, 0)
            if self.folder.state is not None:
                self.restore(self.folder.state)
                order = b"restore"
            elif self.copy in family(self.supervisor):
                order = b"watch %d" % self.copy
            replace(self.text, script.setup(self.serial))
            os.write(self.orders, order)
            self.phase, self.began = STARTING, time.monotonic()
        except OSError as error:
            if self.queue:
                reason = f"The sandbox cannot start a process: {error.strerror} (the limit of processes is reached).\n"
                self.fail(self.queue.pop(0), reason.encode())
        return self.phase == STARTING

    def start_supervisor(self) -> None:
        """Fork the supervisor, and read its reports and the shell's."""
        self.resident.rights.take(self.user)  # so that a shell may open its pipes by name
        try:
            pipes = [os.pipe() for _ in range(5)]
        finally:
            self.resident.rights.give_back()
        (commands, self.commands), (takeover, self.takeover), (orders, self.orders) = pipes[:3]
        (heard, status), (reports, news) = pipes[3:]
        try:
            self.one_page = fcntl.fcntl(self.commands, SET_PIPE_SIZE, PAGE) == PAGE
        except OSError:
            self.one_page = False
        try:
            pid = os.fork()
        except OSError:
            for fd in (fd for pipe in pipes for fd in pipe):
                os.close(fd)
            raise
        if pid == 0:
            fds = [self.state, takeover, self.text, commands, status]
            Supervisor(self.resident, self.user, self.cwd, self.env, fds, orders, news).run()
        for fd in (commands, takeover, orders, status, news):
            os.close(fd)
        for fd in (self.commands, self.takeover, self.orders):
            os.set_blocking(fd, False)
        self.supervisor, self.copy = pid, 0
        self.lines = [
            LineReader(self.resident, heard, self.hear, self.end),
            LineReader(self.resident, reports, self.learn, self.end),
        ]

    def learn(self, words: list[bytes]) -> None:
        """Take a supervisor's report: `p PID`, a shell runs; `f ...`, why none started; `x CODE`, it has ended."""
        if words[0] == b"f":
            self.fault = b" ".join(words[1:]) + b"\n"
        elif words[0] == b"x":
            self.pid = 0
            self.lines[0].read()  # reports from before
            self.ended(int(words[1]))
        elif words[0] == b"p":
            self.pid = int(words[1])
            if self.pid == self.copy:
                self.copy = 0
                # A shell that is being killed could still read a command meant for the next one.
                await_end(self.supervisor, self.stale)
                self.stale.clear()
                os.write(self.takeover, script.TAKE_OVER % self.serial)
            else:
                os.write(self.commands, script.START)

    def hear(self, words: list[bytes]) -> None:
        """Take a shell's report: `r N BASH`, it is ready; `d N BEGUN CODE`, command N has ended (and the latest that
        began); `s N`, its state is saved; `k N PID`, its copy waits."""
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
                self.go = script.GO_BASH if number else script.GO
            else:
                self.folder.take_state()
            self.phase = READY
            self.go_on()

    def take_copy(self, pid: int) -> None:
        """Take over a waiting copy and kill the previous one. Only a descendant of the supervisor can be a copy."""
        below = family(self.supervisor)
        if pid in below and pid != self.pid:
            if self.copy in below and self.copy != self.pid:
                send_signal(self.copy, sig.SIGKILL)
                self.stale.add(self.copy)
            self.copy = pid

    def restore(self, state: int) -> None:
        """Give the next shell the state of the previous one."""
        os.ftruncate(self.state, 0)
        at = 0
        while piece := os.pread(state, 1 << 16, at):
            at += os.pwrite(self.state, piece, at)

    def ended(self, code: int) -> None:
        """The shell has ended; keep its state for the next one."""
        fault, self.fault = self.fault, b""
        run = self.run
        if self.phase == STARTING:
            self.folder.forget_state()  # in case the state itself made the shell end
            if run is None and self.queue:
                run = self.queue.pop(0)
                fault = fault or b"The shell ended before it was ready.\n"
        else:
            self.folder.take_state()
        self.pid, self.phase, self.last = 0, GONE, code
        if run is not None and run.exit_code is None:
            self.last = code = 0 if run.unreported else code
            self.fail(run, fault, code)
        self.go_on()

    # --- its end

    def lost(self) -> None:
        """The supervisor was killed, with everything else or by a command, in which case its children are now the
        resident's."""
        self.supervisor = 0
        if self.pid in family(os.getpid()):
            send_signal(self.pid, sig.SIGKILL)
        for lines in self.lines:
            lines.close()
        self.forget_reading()
        for fd in (self.commands, self.takeover, self.orders):
            os.close(fd)
        self.lines = []
        self.pid, self.phase, self.last, self.fault = 0, GONE, 137, b""
        queue, self.queue = self.queue, []
        for run in (*queue, *filter(None, [self.run])):
            if run.exit_code is None:
                self.resident.finish(run, 137)

    def end(self) -> None:
        """End the shell and everything that it has started."""
        if self.supervisor:
            stop(self.supervisor)
            kill_below(self.supervisor)
            send_signal(self.supervisor, sig.SIGKILL)
            os.waitpid(self.supervisor, 0)
            self.lost()

    def close(self) -> None:
        """End the shell for good, and answer its call."""
        del self.resident.shells[self.call]
        self.end()
        self.run, self.queue = None, []
        self.folder.close()
        for fd in (self.text, self.state):
            os.close(fd)
        self.resident.send(self.call, DONE, [b"0"])


def replace(fd: int, content: bytes) -> None:
    """Replace the content of a file."""
    os.ftruncate(fd, 0)
    at = 0
    while at < len(content):
        at += os.pwrite(fd, content[at : at + (1 << 20)], at)
