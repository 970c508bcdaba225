"""The resident: the one process that lives as long as its sandbox and serves the host's requests.

1. It reads frames (`frames.py`) from a connection: `sys.argv[1]` is the number of a descriptor or the path of a Unix
   socket. End of file means that the owner is gone; the resident then ends the sandbox.
2. A command runs as a child in a session of its own and is a *child subreaper*: all that it forks stays below it while
   it runs, even daemons, so a time-out finds the whole tree. When the command ends, its background processes move below
   the resident and live on; their output is drained so that they never block.
3. In a sandbox with several users it runs as root of its user namespace with four capabilities. Each child gives them
   up by becoming the agent (or the tests' user, who keeps the right to read files of any mode).

Every sandbox starts it, so it imports little: importing `signal` or `json` would cost more than all the rest.
"""

from __future__ import annotations

import _signal as sig  # type: ignore[import-not-found]  # `signal` builds enums: 3 ms of each start
import os
import select
import sys
import time

from ale_sandbox.resident.command import Command, become_command
from ale_sandbox.resident.frames import DONE, FAILED, STREAM, frame, take_frame, unpack
from ale_sandbox.resident.privileges import Rights
from ale_sandbox.resident.processes import below, kill_below, send_signal
from ale_sandbox.resident.requests import serve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ale_sandbox.resident.network.ports import PortConnection
    from ale_sandbox.resident.network.relay_process import RelayProcess
    from ale_sandbox.resident.reset.baseline import Baseline
    from ale_sandbox.resident.reset.cleanup import Reset
    from ale_sandbox.resident.shells.shell import Shell
    from ale_sandbox.resident.trees.transfers import Transfers

DRAIN_S = 0.05
"""How long to wait for output after a command's end while a background process still holds its pipes."""


class Loop:
    """The loop and its state."""

    def __init__(self, control: int) -> None:
        self.inbox = bytearray()
        self.commands: dict[int, Command] = {}
        self.by_fd: dict[int, Command] = {}
        self.shells: dict[int, Shell] = {}
        self.ports: dict[int, PortConnection] = {}
        self.watched: dict[int, Callable[[], None]] = {}
        """Descriptors of shells and of connections to ports, and the functions that read them."""
        self.newborn: set[int] = set()
        """Named pipes and sockets opened while events were handled. An event may be meant for an earlier descriptor of
        the same number, and a named pipe that nobody has opened for writing looks as if it had ended."""
        self.poll = select.epoll()
        self.workdir, self.shell = "/", "/bin/sh"
        self.rights: Rights
        self.rlimits: dict[str, int] = {}
        self.env: dict[bytes, bytes] = {}
        self.relay: RelayProcess | None = None
        self.baseline: Baseline | OSError | None = None
        self.resetting: Reset | None = None
        self.used = False
        """Whether any request since the start or the last reset could have changed the sandbox."""
        self.transfers: Transfers | None = None
        self.child_signal, wakeup = os.pipe()
        for fd in (self.child_signal, wakeup):
            os.set_blocking(fd, False)
        sig.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        sig.signal(sig.SIGCHLD, lambda *_: None)
        self.poll.register(self.child_signal, select.EPOLLIN)
        self.use_connection(control)

    def use_connection(self, control: int) -> None:
        """Take requests from this connection."""
        self.control = control
        os.set_blocking(control, False)
        self.poll.register(control, select.EPOLLIN)

    # --- the loop

    def run(self) -> None:
        """Serve until the owner is gone."""
        while True:
            for fd, _ in self.poll.poll(self.seconds_to_wait()):
                if fd in self.newborn:
                    continue
                if fd == self.control:
                    if not self.read_control():
                        return
                elif fd == self.child_signal:
                    os.read(fd, 4096)
                    self.reap()
                    self.restart_killed_relay()
                elif fd in self.by_fd:
                    self.drain(fd)
                elif fd in self.watched:
                    self.watched[fd]()
            self.newborn.clear()
            now = time.monotonic()
            for command in list(self.commands.values()):
                if command.exit_code is not None:
                    if not command.pipes or now >= command.deadline:
                        self.answer(command)
                elif now >= command.deadline:
                    command.timed_out = True
                    self.kill(command)
            if self.resetting is not None and self.resetting.step():
                self.resetting = None

    def seconds_to_wait(self) -> float:
        """Return the seconds until the next deadline; -1 if there is none."""
        if self.resetting is not None:
            return self.resetting.seconds_to_wait()
        if not self.commands:
            return -1
        return min(3600.0, max(0.0, min(c.deadline for c in self.commands.values()) - time.monotonic()))

    def read_control(self) -> bool:
        """Read what the host sent; return False if the host is gone."""
        try:
            data = os.read(self.control, 1 << 20)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data:
            return False
        self.inbox += data
        while (whole := take_frame(self.inbox)) is not None:
            call, kind, payload = whole
            try:
                serve(self, call, kind, unpack(payload))
            except OSError as error:
                reason = (error.strerror or str(error)).encode()
                self.send(call, FAILED, [str(error.errno or 0).encode(), reason])
            except (ValueError, IndexError) as error:  # sent by an attached process of another release
                self.send(call, FAILED, [b"22", f"an invalid request ({error})".encode()])
        return True

    def send(self, call: int, kind: bytes, fields: list[bytes]) -> None:
        """Send an answer. The host always reads, so waiting for room in the socket cannot hang while it lives."""
        data = memoryview(frame(call, kind, fields))
        while data:
            try:
                data = data[os.write(self.control, data) :]
            except BlockingIOError:
                select.select([], [self.control], [])
            except OSError:
                self.end()

    def end(self) -> None:
        """End all processes and exit (as pid 1 of a namespace, exiting is enough)."""
        if os.getpid() != 1:
            kill_below(os.getpid())
        os._exit(0)

    def keep_relay(self) -> None:
        """Start the network's relay if it should run and does not."""
        if self.relay is not None and not self.relay.pid:
            self.relay.start()

    def restart_killed_relay(self) -> None:
        """Start the relay if it was killed: the command that killed it may be connecting already."""
        if self.relay is not None and not self.relay.failed and self.resetting is None:
            try:
                self.keep_relay()
            except OSError:
                return  # the limit of processes is reached; the next request tries again

    # --- commands

    def stream(self, call: int, kind: bytes, fields: list[bytes]) -> None:
        """Fork a command whose output is streamed, or grant a stream more bytes."""
        from ale_sandbox.resident.output_stream import Stream

        if kind == STREAM:
            self.keep_relay()
            self.start(call, fields, lambda *made: Stream(self, *made))
        elif isinstance(command := self.commands.get(call), Stream):
            command.grant(int(fields[0]))

    def start(self, call: int, fields: list[bytes], make: Callable[..., Command] = Command) -> None:
        """Fork a command."""
        timeout_s, cap, user, cwd, command, stdin = fields[:6]
        now = time.monotonic()
        pipes = [*os.pipe(), *os.pipe()]
        try:
            pid = os.fork()
        except OSError as error:
            for fd in pipes:
                os.close(fd)
            reason = f"The sandbox cannot start a process: {error.strerror} (the limit of processes is reached).\n"
            self.send(call, DONE, [b"1", b"0", b"0", b"0", b"", reason.encode()])
            return
        if pid == 0:
            become_command(self, pipes, user, os.fsdecode(cwd) or self.workdir, os.fsdecode(command), stdin, fields[6:])
        os.close(pipes[1])
        os.close(pipes[3])
        entry = make(call, pid, (pipes[0], pipes[2]), int(cap), now + float(timeout_s))
        self.commands[call] = entry
        for fd in entry.pipes:
            os.set_blocking(fd, False)
            self.by_fd[fd] = entry
            self.poll.register(fd, select.EPOLLIN)

    def forget_all(self) -> None:
        """Answer the commands that `kill_all` has ended, and close every pipe."""
        for shell in list(self.shells.values()):
            shell.close()
        for port in list(self.ports.values()):
            port.finish(FAILED, [b"104", b"the sandbox was reset"])
        for command in list(self.commands.values()):
            if command.exit_code is None:
                self.finish(command, 137)
            self.answer(command)
        if self.transfers is not None:
            for call in list(self.transfers.under_way):
                self.transfers.drop(call)
        for fd in list(self.by_fd):
            os.close(fd)  # closing also removes it from the poll
        self.by_fd.clear()

    def drain(self, fd: int) -> None:
        """Read one piece from a pipe, or notice its end."""
        command = self.by_fd[fd]
        room = command.room()
        if room < 1:
            return
        try:
            data = os.read(fd, room)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            command.keep(fd, data)
            return
        self.poll.unregister(fd)
        os.close(fd)
        del self.by_fd[fd], command.pipes[fd]

    def reap(self) -> None:
        """Collect the processes that have ended, orphans too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except OSError:
                return
            if pid == 0:
                return
            if self.relay is not None and self.relay.pid == pid:
                self.relay.ended(status)  # killed by `kill_all`, or by an agent that is the same user
            for shell in list(self.shells.values()):
                if shell.supervisor == pid:
                    shell.lost()
            for command in self.commands.values():
                if command.pid == pid:
                    code = os.waitstatus_to_exitcode(status)
                    self.finish(command, code if code >= 0 else 128 - code)

    def finish(self, command: Command, exit_code: int) -> None:
        """Finish a command whose process has ended: read what is in its pipes and wait a moment for more."""
        command.exit_code = exit_code
        # Read only what is in the pipe now: a background process that writes without end must not block this loop.
        for fd in list(command.pipes):
            for _ in range(32):
                if fd in command.pipes:
                    self.drain(fd)
        command.deadline = float("inf") if command.paused else time.monotonic() + DRAIN_S

    def answer(self, command: Command) -> None:
        """Send a finished command's result. Pipes that others still hold stay open; their output is dropped."""
        del self.commands[command.call]
        command.answered = True
        code = 124 if command.timed_out else command.exit_code or 0
        flags = [b"1" if flag else b"0" for flag in (command.timed_out, command.truncated)]
        seconds = f"{time.monotonic() - command.started:.6f}".encode()
        self.send(command.call, DONE, [str(code).encode(), *flags, seconds, *(bytes(b) for b in command.buffers)])
        command.buffers.clear()
        command.let_go()

    def kill(self, command: Command) -> None:
        """Kill a command and its descendants."""
        if command.exit_code is not None:
            return
        until = time.monotonic() + command.kill()
        if command.exit_code is None:
            command.deadline = until
            self.reap()

    def kill_all(self) -> None:
        """Kill and collect every process of the sandbox but this one."""
        until = time.monotonic() + 5
        if self.relay is not None and self.relay.pid:
            self.relay.stop()
        if os.getpid() == 1:
            send_signal(-1, sig.SIGKILL)
        while time.monotonic() < until:
            if os.getpid() != 1:
                kill_below(os.getpid())
            self.reap()
            if not below(os.getpid()):
                return
            time.sleep(0.001)
        raise OSError(0, "processes of the sandbox did not end within 5 s of being killed")


def main() -> None:
    """Serve on the descriptor that the host gave."""
    if sys.argv[1].isdigit():
        control = int(sys.argv[1])
    else:
        from ale_sandbox.resident.reconnect import connect

        control = connect(sys.argv[1])
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != control:
            try:
                os.close(int(name))  # a descriptor of the launch, which no command may inherit
            except OSError:
                continue
    os.set_inheritable(control, False)
    resident = Loop(control)
    resident.run()
    resident.end()
