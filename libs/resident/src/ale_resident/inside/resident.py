"""The resident: the one process that lives as long as its sandbox and does what the host asks.

1. It reads frames (`wire.py`) from one end of a connection: a descriptor whose number, or a Unix socket whose path, is
   in `sys.argv[1]`; end of file means that the owner is gone, and it ends the sandbox.
2. A command runs as a child in a session of its own that is also a *child subreaper*: whatever it forks, however
   often it daemonizes, stays below it while it runs, so a time-out finds the whole tree. When the command ends, what
   it left in the background moves below the resident and lives on; its output is drained so that it never blocks.
3. In a sandbox with several users it runs as root of its user namespace with four capabilities, and each
   child gives them up by becoming the agent (or the user of the tests, who keeps the right to read odd file modes).

It starts once a sandbox, so it imports little: importing `signal` or `json` would cost more than all the rest.
"""

from __future__ import annotations

import _signal as sig  # type: ignore[import-not-found]  # `signal` builds enums: 3 ms of each start
import os
import resource
import select
import sys
import time

from ale_resident.inside import files
from ale_resident.inside.rights import Rights
from ale_resident.inside.tree import below, kill_below, send_signal, stop
from ale_resident.inside.wire import (
    ACK,
    CANCEL,
    DATA,
    DONE,
    EXEC,
    FAILED,
    INIT,
    KILL,
    PART,
    READ,
    RESET,
    RUN,
    SHELL,
    STREAM,
    TREE,
    USAGE,
    WRITE,
    frame,
    take_frame,
    unpack,
)  # fmt: skip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ale_resident.inside.clean import Reset
    from ale_resident.inside.fresh import Fresh
    from ale_resident.inside.network import Network
    from ale_resident.inside.shells import Shell
    from ale_resident.inside.transfers import Transfers

READ_BYTES = 1 << 16
GATE = "/.ale/gate/socket"
"""The way out of the sandbox's network, where there is one."""
DRAIN_S = 0.05
"""How long output is awaited after a command's end where a background process still holds its pipes."""


class Command:
    """A running command: its process, its pipes, what it wrote so far."""

    def __init__(self, call: int, pid: int, pipes: tuple[int, ...], cap: int, deadline: float) -> None:
        self.call, self.pid, self.cap, self.deadline = call, pid, cap, deadline
        self.started = time.monotonic()
        self.pipes = {fd: bytearray() for fd in pipes}
        self.buffers = list(self.pipes.values())
        self.truncated = self.timed_out = self.answered = self.paused = False
        self.exit_code: int | None = None

    def room(self) -> int:
        """How much may be read of its output now."""
        return READ_BYTES

    def keep(self, fd: int, data: bytes) -> None:
        """Take output, up to the cap; the rest is read and forgotten."""
        if self.answered:
            return
        buffer = self.pipes[fd]
        room = self.cap - len(buffer)
        buffer += data[:room]
        self.truncated = self.truncated or len(data) > room

    def let_go(self) -> None:
        """Nobody waits for its output any more."""

    def kill(self) -> float:
        """End it and everything below it; seconds after which to look again. It is stopped first, so that it stays their
        parent meanwhile."""
        stop(self.pid)
        kill_below(self.pid)
        send_signal(self.pid, sig.SIGKILL)
        return 3600


class Resident:
    """The loop and its state."""

    def __init__(self, control: int) -> None:
        self.inbox = bytearray()
        self.commands: dict[int, Command] = {}
        self.by_fd: dict[int, Command] = {}
        self.shells: dict[int, Shell] = {}
        self.watched: dict[int, Callable[[], None]] = {}
        """Descriptors of shells, and who reads them."""
        self.newborn: set[int] = set()
        """Named pipes that were opened while events were looked at. One of these may be meant for what had the number before,
        and a named pipe that nobody has opened for writing yet looks as if it had ended."""
        self.poll = select.epoll()
        self.workdir, self.shell = "/", "/bin/sh"
        self.rights: Rights
        self.rlimits: dict[str, int] = {}
        self.env: dict[bytes, bytes] = {}
        self.network: Network | None = None
        self.fresh: Fresh | OSError | None = None
        self.resetting: Reset | None = None
        self.used = False
        """Whether anything was asked for since it was fresh that could have changed it."""
        self.transfers: Transfers | None = None
        self.child_signal, wakeup = os.pipe()
        for fd in (self.child_signal, wakeup):
            os.set_blocking(fd, False)
        sig.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        sig.signal(sig.SIGCHLD, lambda *_: None)
        self.poll.register(self.child_signal, select.EPOLLIN)
        self.heed(control)

    def heed(self, control: int) -> None:
        """Take requests from this connection."""
        self.control = control
        os.set_blocking(control, False)
        self.poll.register(control, select.EPOLLIN)

    # --- the loop

    def run(self) -> None:
        """Serve until the owner is gone."""
        while True:
            for fd, _ in self.poll.poll(self.patience()):
                if fd in self.newborn:
                    continue
                if fd == self.control:
                    if not self.read_control():
                        return
                elif fd == self.child_signal:
                    os.read(fd, 4096)
                    self.reap()
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

    def patience(self) -> float:
        """Seconds until the next deadline; -1 where there is none."""
        if self.resetting is not None:
            return self.resetting.patience()
        if not self.commands:
            return -1
        return min(3600.0, max(0.0, min(c.deadline for c in self.commands.values()) - time.monotonic()))

    def read_control(self) -> bool:
        """Take what the host sent; False where the host is gone."""
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
                self.serve(call, kind, unpack(payload))
            except OSError as error:
                reason = (error.strerror or str(error)).encode()
                self.send(call, FAILED, [str(error.errno or 0).encode(), reason])
            except (ValueError, IndexError) as error:  # of an attached process that is of another release
                self.send(call, FAILED, [b"22", f"a request that makes no sense ({error})".encode()])
        return True

    def serve(self, call: int, kind: bytes, fields: list[bytes]) -> None:
        """One request."""
        if self.resetting is not None and kind != CANCEL:
            raise OSError(16, "the sandbox is being reset")
        self.used = self.used or kind not in (INIT, RESET, CANCEL, READ, USAGE)
        if kind == EXEC:
            self.keep_relay()
            self.start(call, fields)
        elif kind in (STREAM, ACK):
            self.stream(call, kind, fields)
        elif kind in (SHELL, RUN):
            from ale_resident.inside import shells

            self.keep_relay()
            shells.serve(self, call, kind, fields)
        elif kind == CANCEL:
            if call in self.commands:
                self.commands[call].let_go()
                self.kill(self.commands[call])
            elif call in self.shells:
                self.shells[call].close()
            elif self.transfers is not None and self.transfers.drop(call):
                self.send(call, DONE, [])
        elif kind == TREE:
            if self.transfers is None:
                from ale_resident.inside.transfers import Transfers

                self.transfers = Transfers(self)
            last, answer = self.transfers.serve(call, fields)
            self.send(call, DONE if last else DATA, answer)
        elif kind == WRITE:
            files.write(self.workdir, self.rights, fields)
            self.send(call, DONE, [])
        elif kind == READ:
            limit, start = int(fields[1]), [int(field) for field in fields[2:3]]
            for piece in files.read(self.workdir, self.rights, os.fsdecode(fields[0]), limit, *start):
                self.send(call, DATA, [piece])
            self.send(call, DONE, [])
        elif kind == KILL:
            self.kill_all()
            self.keep_relay()
            self.send(call, DONE, [])
        elif kind == USAGE:
            from ale_resident.inside import usage

            self.send(call, DONE, [str(number).encode() for number in (usage.in_memory(), *usage.network())])
        elif kind == INIT and self.env:  # it goes on from a checkpoint
            self.env = environment(fields[6:])
            self.send(call, DONE, [])
        elif kind == INIT:
            self.set_up(fields)
            self.send(call, DONE, [])
            if fields[0] != b"plain":
                from ale_resident.inside import fresh

                self.fresh = fresh.taken([self.workdir, os.fsdecode(self.env[b"HOME"])])
            self.keep_relay()
        elif kind == PART:
            if sys.argv[1].isdigit():
                raise OSError(38, "the sandbox has but the connection that it was started with")
            from ale_resident.inside.parting import part

            self.send(call, DONE, [])
            part(self, sys.argv[1])
        elif kind == RESET:
            from ale_resident.inside.clean import Reset

            self.resetting = Reset(self, call, environment(fields[6:]))
        else:
            raise OSError(38, "the sandbox knows no such request")

    def send(self, call: int, kind: bytes, fields: list[bytes]) -> None:
        """Answer. The host always reads, so waiting for room in the socket cannot hang while it lives."""
        data = memoryview(frame(call, kind, fields))
        while data:
            try:
                data = data[os.write(self.control, data) :]
            except BlockingIOError:
                select.select([], [self.control], [])
            except OSError:
                self.end()

    def end(self) -> None:
        """Leave, taking everything along (as pid 1 of a namespace, leaving is enough)."""
        if os.getpid() != 1:
            kill_below(os.getpid())
        os._exit(0)

    # --- set-up and users

    def set_up(self, fields: list[bytes]) -> None:
        """Take the sandbox's constants; become root of the namespace where there are several users."""
        mode, self.workdir, self.shell, limits, make, plan = (os.fsdecode(f) for f in fields[:6])
        for pair in limits.split():
            name, value = pair.split("=")
            self.rlimits[name] = int(value)
        self.env = environment(fields[6:])
        if make:
            from ale_resident.inside import places

            self.shell = places.find_shell(self.shell)
            places.make(self.workdir, os.fsdecode(self.env[b"HOME"]), owned=mode == "users")
        if plan:
            from ale_resident.inside.network import Network

            self.network = Network(plan.splitlines(), GATE, own_user=mode == "users")
        self.rights = Rights(several=mode == "users")
        if make:  # in a container, beside the engine's own filter; bubblewrap has set it before this program began
            from ale_resident.inside import seccomp

            seccomp.install()

    def keep_relay(self) -> None:
        """Start the network's relay where one should run and does not."""
        if self.network is not None and not self.network.pid:
            self.network.start()

    # --- commands

    def stream(self, call: int, kind: bytes, fields: list[bytes]) -> None:
        """Fork a command whose output goes out as it comes, or read more of it."""
        from ale_resident.inside.pieces import Stream

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
            self.in_child(pipes, user, os.fsdecode(cwd) or self.workdir, os.fsdecode(command), stdin, fields[6:])
        os.close(pipes[1])
        os.close(pipes[3])
        entry = make(call, pid, (pipes[0], pipes[2]), int(cap), now + float(timeout_s))
        self.commands[call] = entry
        for fd in entry.pipes:
            os.set_blocking(fd, False)
            self.by_fd[fd] = entry
            self.poll.register(fd, select.EPOLLIN)

    def in_child(
        self, pipes: list[int], user: bytes, cwd: str, command: str, stdin: bytes, extra_env: list[bytes]
    ) -> None:
        """Become the command; never returns."""
        try:
            sig.set_wakeup_fd(-1)
            for number in (sig.SIGCHLD, sig.SIGPIPE, sig.SIGXFSZ):
                sig.signal(number, sig.SIG_DFL)
            os.setsid()
            self.offer_to_oom_killer()
            source = os.memfd_create("stdin") if stdin else os.open("/dev/null", os.O_RDONLY)
            if stdin:
                view = memoryview(stdin)
                while view:
                    view = view[os.write(source, view) :]
                os.lseek(source, 0, 0)
            os.dup2(source, 0)
            os.dup2(pipes[1], 1)
            os.dup2(pipes[3], 2)
            if self.rlimits:
                set_rlimits(self.rlimits)
            self.rights.become(user)
            os.umask(0o022)
            env = self.env | environment(extra_env)
            os.chdir(os.path.join(self.workdir, cwd))
            env[b"PWD"] = os.fsencode(os.getcwd())
            os.execve(self.shell, [os.path.basename(self.shell), "-c", command], env)
        except OSError as error:
            os.write(2, f"The sandbox cannot run the command in {cwd!r}: {error.strerror or error}.\n".encode())
        finally:
            os._exit(1)

    def forget_all(self) -> None:
        """Answer the commands that `kill_all` has ended, and let go of every pipe."""
        for shell in list(self.shells.values()):
            shell.close()
        for command in list(self.commands.values()):
            if command.exit_code is None:
                self.finish(command, 137)
            self.answer(command)
        if self.transfers is not None:
            for call in list(self.transfers.under_way):
                self.transfers.drop(call)
        for fd in list(self.by_fd):
            os.close(fd)  # which takes it from the poll too
        self.by_fd.clear()

    def offer_to_oom_killer(self) -> None:
        """Out of memory, the kernel shall take a command and not the resident."""
        try:
            fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
            os.write(fd, b"500")
            os.close(fd)
        except OSError:
            return

    def drain(self, fd: int) -> None:
        """Read one piece of a pipe, or take note of its end."""
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
        """Collect what has ended, orphans too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except OSError:
                return
            if pid == 0:
                return
            if self.network is not None and self.network.pid == pid:
                self.network.pid = 0  # by `kill_all`, or by an agent that is the same user
            for shell in list(self.shells.values()):
                if shell.keeper == pid:
                    shell.lost()
            for command in self.commands.values():
                if command.pid == pid:
                    code = os.waitstatus_to_exitcode(status)
                    self.finish(command, code if code >= 0 else 128 - code)

    def finish(self, command: Command, exit_code: int) -> None:
        """A command's process has ended: what is in its pipes still counts, more is awaited for a moment."""
        command.exit_code = exit_code
        # A background process that writes without end must not hold this loop: what is in the pipe now is enough.
        for fd in list(command.pipes):
            for _ in range(32):
                if fd in command.pipes:
                    self.drain(fd)
        command.deadline = float("inf") if command.paused else time.monotonic() + DRAIN_S

    def answer(self, command: Command) -> None:
        """Send a finished command's result. Pipes that others still hold stay open and are drained to nowhere."""
        del self.commands[command.call]
        command.answered = True
        code = 124 if command.timed_out else command.exit_code or 0
        flags = [b"1" if flag else b"0" for flag in (command.timed_out, command.truncated)]
        seconds = f"{time.monotonic() - command.started:.6f}".encode()
        self.send(command.call, DONE, [str(code).encode(), *flags, seconds, *(bytes(b) for b in command.buffers)])
        command.buffers.clear()
        command.let_go()

    def kill(self, command: Command) -> None:
        """End a command and everything below it."""
        if command.exit_code is not None:
            return
        until = time.monotonic() + command.kill()
        if command.exit_code is None:
            command.deadline = until
            self.reap()

    def kill_all(self) -> None:
        """End every process of the sandbox but this one, and collect them."""
        until = time.monotonic() + 5
        if self.network is not None and self.network.pid:
            self.network.stop()
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


def environment(pairs: list[bytes]) -> dict[bytes, bytes]:
    """`NAME=value` strings as a mapping."""
    return {name: value for name, _, value in (pair.partition(b"=") for pair in pairs)}


def set_rlimits(limits: dict[str, int]) -> None:
    """Limits by the kernel's per-process means, where there are no cgroups."""
    for name, value in limits.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def connected(path: str) -> int:
    """A connection to the host."""
    import _socket

    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    sock.connect(path)
    return sock.detach()


def main() -> None:
    """Serve on the descriptor that the host gave."""
    control = int(sys.argv[1]) if sys.argv[1].isdigit() else connected(sys.argv[1])
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != control:
            try:
                os.close(int(name))  # what the launch needed; no command may inherit it
            except OSError:
                continue
    os.set_inheritable(control, False)
    resident = Resident(control)
    resident.run()
    resident.end()
