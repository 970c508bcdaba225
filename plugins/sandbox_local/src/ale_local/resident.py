"""The resident: the one process that lives as long as its sandbox and does what the host asks.

1. It reads frames (`wire.py`) from one end of a socket pair, given to it as the descriptor in `sys.argv[1]`; end of
   file means that the owner is gone, and it ends the sandbox.
2. A command runs as a child in a session of its own that is also a *child subreaper*: whatever it forks, however
   often it daemonizes, stays below it while it runs, so a time-out finds the whole tree. When the command ends, what
   it left in the background moves below the resident and lives on; its output is drained so that it never blocks.
3. In a bubblewrap sandbox with several users it runs as root of its user namespace with four capabilities, and each
   child gives them up by becoming the agent (or the user of the tests, who keeps the right to read odd file modes).

It starts once a sandbox, so it imports little: importing `signal` or `json` would cost more than all the rest.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time

import _signal as sig  # type: ignore[import-not-found]  # `signal` builds enums: 3 ms of each start

from ale_local.wire import (
    CANCEL,
    DATA,
    DONE,
    EXEC,
    FAILED,
    INIT,
    KILL,
    READ,
    WRITE,
    frame,
    take_frame,
    unpack,
)

AGENT_UID, TESTS_UID = 1000, 1001
READ_BYTES = 1 << 16
DRAIN_S = 0.05
"""How long output is awaited after a command's end where a background process still holds its pipes."""
PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_CHILD_SUBREAPER, PR_CAP_AMBIENT = 4, 8, 36, 47
CAP_DAC_OVERRIDE, CAP_KILL, CAP_SETGID, CAP_SETUID = 1, 5, 6, 7

libc = ctypes.CDLL(None)


def prctl(option: int, *values: int) -> None:
    """The system call; a kernel too old for an option is no reason to fail."""
    libc.prctl(option, *[ctypes.c_ulong(v) for v in (*values, 0, 0, 0, 0)[:4]])


def set_capabilities(caps: set[int], inheritable: set[int]) -> None:
    """Make `caps` the effective and permitted capabilities of this process."""
    have, inherit = sum(1 << c for c in caps), sum(1 << c for c in inheritable)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)(have, have, inherit, 0, 0, 0)
    if libc.capset(header, data) != 0:
        raise OSError("capset was refused")


def parents() -> dict[int, int]:
    """Every live process that can be seen: pid -> parent's pid. Zombies are left out."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fd = os.open(f"/proc/{name}/stat", os.O_RDONLY)
            except OSError:
                continue
            try:
                state, parent = os.read(fd, 512).rsplit(b")", 1)[1].split()[:2]
                if state not in (b"Z", b"X"):
                    found[int(name)] = int(parent)
            except (OSError, IndexError, ValueError):
                pass
            finally:
                os.close(fd)
    return found


def below(root: int) -> set[int]:
    """The live descendants of a process."""
    tree = parents()
    found: set[int] = set()
    fresh = {root}
    while fresh:
        fresh = {pid for pid, parent in tree.items() if parent in fresh and pid not in found}
        found |= fresh
    return found


def send_signal(pid: int, number: int) -> None:
    """`kill` that takes a process which is already gone."""
    try:
        os.kill(pid, number)
    except OSError:
        pass


def kill_below(root: int) -> None:
    """Kill all descendants of a live process. They are stopped first: a fork bomb cannot outrun that."""
    for _ in range(100):
        stopped: set[int] = set()
        for _ in range(1000):
            fresh = below(root) - stopped
            if not fresh:
                break
            for pid in fresh:
                send_signal(pid, sig.SIGSTOP)
            stopped |= fresh
        if not stopped:
            return
        for pid in stopped:
            send_signal(pid, sig.SIGKILL)
        reap_until = time.monotonic() + 0.5
        while below(root) & stopped and time.monotonic() < reap_until:
            time.sleep(0.001)


class Command:
    """A running command: its process, its pipes, what it wrote so far."""

    def __init__(self, call: int, pid: int, pipes: tuple[int, int], cap: int, deadline: float) -> None:
        self.call, self.pid, self.cap, self.deadline = call, pid, cap, deadline
        self.started = time.monotonic()
        self.pipes: dict[int, bytearray] = {pipes[0]: bytearray(), pipes[1]: bytearray()}
        self.buffers = list(self.pipes.values())
        self.truncated = self.timed_out = self.answered = False
        self.exit_code: int | None = None

    def keep(self, fd: int, data: bytes) -> None:
        """Take output, up to the cap; the rest is read and forgotten."""
        if self.answered:
            return
        buffer = self.pipes[fd]
        room = self.cap - len(buffer)
        buffer += data[:room]
        self.truncated = self.truncated or len(data) > room


class Resident:
    """The loop and its state."""

    def __init__(self, control: int) -> None:
        self.control = control
        self.inbox = bytearray()
        self.commands: dict[int, Command] = {}
        self.by_fd: dict[int, Command] = {}
        self.poll = select.epoll()
        self.mode, self.workdir, self.shell = "plain", "/", "/bin/sh"
        self.rlimits: dict[str, int] = {}
        self.env: dict[bytes, bytes] = {}
        self.child_signal, wakeup = os.pipe()
        for fd in (self.child_signal, wakeup, control):
            os.set_blocking(fd, False)
        sig.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        sig.signal(sig.SIGCHLD, lambda *_: None)
        self.poll.register(self.child_signal, select.EPOLLIN)
        self.poll.register(control, select.EPOLLIN)

    # --- the loop

    def run(self) -> None:
        """Serve until the owner is gone."""
        while True:
            for fd, _ in self.poll.poll(self.patience()):
                if fd == self.control:
                    if not self.read_control():
                        return
                elif fd == self.child_signal:
                    os.read(fd, 4096)
                    self.reap()
                elif fd in self.by_fd:
                    self.drain(fd)
            now = time.monotonic()
            for command in list(self.commands.values()):
                if command.exit_code is not None:
                    if not command.pipes or now >= command.deadline:
                        self.answer(command)
                elif now >= command.deadline:
                    command.timed_out = True
                    self.kill(command)

    def patience(self) -> float:
        """Seconds until the next deadline; -1 where there is none."""
        if not self.commands:
            return -1
        return max(0.0, min(c.deadline for c in self.commands.values()) - time.monotonic())

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
        return True

    def serve(self, call: int, kind: bytes, fields: list[bytes]) -> None:
        """One request."""
        if kind == EXEC:
            self.start(call, fields)
        elif kind == CANCEL:
            if call in self.commands:
                self.kill(self.commands[call])
        elif kind == WRITE:
            self.write_files(fields)
            self.send(call, DONE, [])
        elif kind == READ:
            self.read_file(call, os.fsdecode(fields[0]), int(fields[1]))
        elif kind == KILL:
            self.kill_all()
            self.send(call, DONE, [])
        elif kind == INIT:
            self.set_up(fields)
            self.send(call, DONE, [])

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
        self.mode, self.workdir, self.shell = (os.fsdecode(f) for f in fields[:3])
        for pair in os.fsdecode(fields[3]).split():
            name, value = pair.split("=")
            self.rlimits[name] = int(value)
        self.env = dict(f.split(b"=", 1) for f in fields[4:])
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        if self.mode == "users":
            os.setgroups([])
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
            set_capabilities({CAP_DAC_OVERRIDE, CAP_KILL, CAP_SETGID, CAP_SETUID}, set())
        else:
            # The agent is the same user: it must not be able to attach to this process and forge its answers.
            prctl(PR_SET_DUMPABLE, 0)

    def become(self, user: bytes) -> None:
        """In a child: give up root and every capability for `user`."""
        if self.mode != "users":
            return
        uid = TESTS_UID if user == b"tests" else AGENT_UID
        prctl(PR_SET_KEEPCAPS, 1 if uid == TESTS_UID else 0)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        if uid == TESTS_UID:
            set_capabilities({CAP_DAC_OVERRIDE}, {CAP_DAC_OVERRIDE})
            prctl(PR_CAP_AMBIENT, 2, CAP_DAC_OVERRIDE)

    # --- commands

    def start(self, call: int, fields: list[bytes]) -> None:
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
        entry = Command(call, pid, (pipes[0], pipes[2]), int(cap), now + float(timeout_s))
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
            prctl(PR_SET_CHILD_SUBREAPER, 1)
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
            self.become(user)
            os.umask(0o022)
            env = dict(self.env)
            env.update(f.split(b"=", 1) for f in extra_env)
            os.chdir(os.path.join(self.workdir, cwd))
            env[b"PWD"] = os.fsencode(os.getcwd())
            os.execve(self.shell, [os.path.basename(self.shell), "-c", command], env)
        except OSError as error:
            os.write(2, f"The sandbox cannot run the command in {cwd!r}: {error.strerror or error}.\n".encode())
        finally:
            os._exit(1)

    def offer_to_oom_killer(self) -> None:
        """Out of memory, the kernel shall take a command and not the resident."""
        try:
            fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
            os.write(fd, b"500")
            os.close(fd)
        except OSError:
            pass

    def drain(self, fd: int) -> None:
        """Read one piece of a pipe, or take note of its end."""
        command = self.by_fd[fd]
        try:
            data = os.read(fd, READ_BYTES)
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
        command.deadline = time.monotonic() + DRAIN_S

    def answer(self, command: Command) -> None:
        """Send a finished command's result. Pipes that others still hold stay open and are drained to nowhere."""
        del self.commands[command.call]
        command.answered = True
        code = 124 if command.timed_out else command.exit_code or 0
        flags = [b"1" if flag else b"0" for flag in (command.timed_out, command.truncated)]
        seconds = f"{time.monotonic() - command.started:.6f}".encode()
        self.send(command.call, DONE, [str(code).encode(), *flags, seconds, *(bytes(b) for b in command.buffers)])
        command.buffers.clear()

    def kill(self, command: Command) -> None:
        """End a command and everything below it. It is stopped first so that it stays their parent meanwhile."""
        if command.exit_code is not None:
            return
        send_signal(command.pid, sig.SIGSTOP)
        kill_below(command.pid)
        send_signal(command.pid, sig.SIGKILL)
        command.deadline = time.monotonic() + 3600
        self.reap()

    def kill_all(self) -> None:
        """End every process of the sandbox but this one, and collect them."""
        until = time.monotonic() + 5
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

    # --- files

    def as_user(self, user: bytes) -> None:
        """Touch files with a user's rights: a link planted by the agent then leads nowhere it could not go itself."""
        if self.mode == "users":
            uid = TESTS_UID if user == b"tests" else AGENT_UID
            os.setegid(uid)
            os.seteuid(uid)

    def as_self(self) -> None:
        """Take the resident's own rights back."""
        if self.mode == "users":
            os.seteuid(0)
            os.setegid(0)

    def write_files(self, fields: list[bytes]) -> None:
        """Write files: user, mode, 'w' or 'a', then path, content, ... The tests' folders are closed to others."""
        user, mode, how = fields[0], int(fields[1], 8), fields[2]
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if how == b"a" else os.O_TRUNC)
        self.as_user(user)
        os.umask(0o077 if user == b"tests" else 0o022)
        try:
            for path, content in zip(fields[3::2], fields[4::2], strict=True):
                target = os.path.join(self.workdir, os.fsdecode(path))
                try:
                    fd = os.open(target, flags | os.O_NONBLOCK, mode)
                except FileNotFoundError:
                    os.makedirs(os.path.dirname(target), exist_ok=True)
                    fd = os.open(target, flags | os.O_NONBLOCK, mode)
                try:
                    os.fchmod(fd, mode)
                    view = memoryview(content)
                    while view:
                        view = view[os.write(fd, view) :]
                finally:
                    os.close(fd)
        finally:
            self.as_self()

    def read_file(self, call: int, path: str, max_bytes: int) -> None:
        """Send a file in pieces; a device or a pipe is refused, it could block or never end."""
        self.as_user(b"agent")
        try:
            fd = os.open(os.path.join(self.workdir, path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            self.as_self()
        try:
            kind = os.fstat(fd).st_mode & 0o170000
            if kind == 0o040000:
                raise IsADirectoryError(21, "Is a directory")
            if kind != 0o100000:
                raise OSError(22, "not a regular file")
            sent = 0
            while data := os.read(fd, 1 << 18):
                sent += len(data)
                if sent > max_bytes:
                    raise OSError(27, f"larger than {max_bytes} bytes")
                self.send(call, DATA, [data])
        finally:
            os.close(fd)
        self.send(call, DONE, [])


def set_rlimits(limits: dict[str, int]) -> None:
    """Limits by the kernel's per-process means, where there are no cgroups."""
    import resource  # only needed here: one import less at each start

    for name, value in limits.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def main() -> None:
    """Serve on the descriptor that the host gave."""
    os.set_inheritable(int(sys.argv[1]), False)
    resident = Resident(int(sys.argv[1]))
    resident.run()
    resident.end()


if __name__ == "__main__":
    main()
