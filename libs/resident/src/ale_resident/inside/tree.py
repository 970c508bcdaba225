"""The processes below another one: seeing them all and ending them all. Used by the resident, inside the sandbox."""

from __future__ import annotations

import _signal as sig  # type: ignore[import-not-found]  # `signal` builds enums: 3 ms of each start
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Family = dict[int, tuple[int, bytes]]
    """Processes: the parent of each, and when it began."""


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
                alive, parent, _ = described(os.read(fd, 512))
                if alive:
                    found[int(name)] = parent
            except (OSError, IndexError, ValueError):
                pass
            finally:
                os.close(fd)
    return found


def described(line: bytes) -> tuple[bool, int, bytes]:
    """What `/proc/PID/stat` says: whether it is alive, its parent, when it began. One whose first thread has ended lives on."""
    fields = line.rsplit(b")", 1)[1].split()
    return fields[0] not in (b"Z", b"X") or int(fields[17]) > 1, int(fields[1]), fields[19]


def family(root: int) -> Family:
    """The live descendants of a process that adopts orphans. Where the kernel can list children, nobody else is looked at."""
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        above = parents()
        return {pid: (above[pid], began) for pid in below(root) if pid in above and (began := begin_of(pid))}
    found: Family = {}
    todo = [root]
    while todo:
        parent = todo.pop()
        for pid in children(parent):
            began = begin_of(pid)
            if began and pid not in found:
                found[pid] = (parent, began)
                todo += (root, pid)  # whoever lost its parent meanwhile is a child of the root's now
    return found


def children(pid: int) -> list[int]:
    """The children of all threads of a process."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
                found += map(int, file.readall().split())
    except OSError:
        pass  # it is gone
    return found


def begin_of(pid: int) -> bytes:
    """When a live process began; empty where there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            alive, _, began = described(file.read(512))
    except (OSError, IndexError, ValueError):
        return b""
    return began if alive else b""


def since(before: Family, now: Family) -> set[int]:
    """Those who are new, and not below anybody who was there before."""

    def old(pid: int) -> bool:
        while pid in now:
            parent, began = now[pid]
            if pid in before and before[pid][1] == began:
                return True
            pid = parent
        return False

    return {pid for pid in now if not old(pid)}


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
        return


def stop(pid: int) -> None:
    """Stop a process; when this returns, it stands still: what is in the middle of a fork has forked."""
    send_signal(pid, sig.SIGSTOP)
    until = time.monotonic() + 0.1
    while time.monotonic() < until:
        try:
            with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
                if file.read(512).rsplit(b")", 1)[1].split()[0] not in (b"R", b"S", b"D"):
                    return
        except (OSError, IndexError):
            return  # it is gone
        time.sleep(0.0002)


def kill_below(root: int) -> None:
    """Kill all descendants of a process that was stopped, or forks nothing itself. They are stopped first: a fork bomb cannot
    outrun that."""
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


def kill_new(root: int, before: Family, spare: int, standing: Callable[[], None]) -> None:
    """Kill what has come to be below a process since, but for one that was stopped. `standing` is called when all stand still."""
    until = time.monotonic() + 2
    while time.monotonic() < until:
        stopped: set[int] = set()
        while time.monotonic() < until and (fresh := since(before, family(root)) - stopped - {spare}):
            for pid in fresh:
                send_signal(pid, sig.SIGSTOP)
            stopped |= fresh
        standing()
        if not stopped:
            return
        for pid in stopped:
            send_signal(pid, sig.SIGKILL)
        await_end(root, stopped)


def await_end(root: int, killed: set[int]) -> None:
    """Await the end of processes below another one that have been killed."""
    until = time.monotonic() + 0.5
    while killed & family(root).keys() and time.monotonic() < until:
        time.sleep(0.001)
