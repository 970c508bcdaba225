"""Finds and kills all descendants of a process. Runs in the resident, inside the sandbox."""

from __future__ import annotations

import _signal as sig  # type: ignore[import-not-found]  # `signal` builds enums: 3 ms of each start
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Family = dict[int, tuple[int, bytes]]
    """Process ids; for each its parent and its start time."""

MOST_ROUNDS = 100
"""How often `family` looks again; without end, processes that only fork and exit could hold it up."""


def parents() -> dict[int, int]:
    """List every visible live process: pid -> parent's pid. Zombies are left out."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fd = os.open(f"/proc/{name}/stat", os.O_RDONLY)
            except OSError:
                continue
            try:
                alive, parent, _ = parse_status(os.read(fd, 512))
                if alive:
                    found[int(name)] = parent
            except (OSError, IndexError, ValueError):
                pass
            finally:
                os.close(fd)
    return found


def parse_status(line: bytes) -> tuple[bool, int, bytes]:
    """Parse `/proc/PID/stat`: whether the process is alive, its parent and its start time. A process whose first thread
    has ended is still alive."""
    fields = line.rsplit(b")", 1)[1].split()
    return fields[0] not in (b"Z", b"X") or int(fields[17]) > 1, int(fields[1]), fields[19]


def family(root: int) -> Family:
    """Find the live descendants of a process that adopts orphans. If the kernel can list children, no other process is
    read."""
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        above = parents()
        return {pid: (above[pid], began) for pid in below(root) if pid in above and (began := begin_of(pid))}
    found: Family = {}
    seen: set[int] = set()
    todo = [root]
    for _ in range(MOST_ROUNDS):
        before = len(seen)
        while todo:
            parent = todo.pop()
            for pid in children(parent):
                if pid not in seen:
                    seen.add(pid)
                    if began := begin_of(pid):
                        found[pid] = (parent, began)
                        todo.append(pid)
        if len(seen) == before:
            break
        # What lost its parent meanwhile is now a child of the root; if the parent was seen dead, or of one that adopts.
        todo = [root] if len(seen) == len(found) else [root, *found]
    return found


def children(pid: int) -> list[int]:
    """List the children of all threads of a process."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found  # it is gone
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
                found += map(int, file.readall().split())
        except OSError:
            continue  # this thread is gone, and others may live
    return found


def begin_of(pid: int) -> bytes:
    """Return the start time of a live process; empty if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            alive, _, began = parse_status(file.read(512))
    except (OSError, IndexError, ValueError):
        return b""
    return began if alive else b""


def since(before: Family, now: Family) -> set[int]:
    """Return the processes in `now` that are new and have no ancestor in `before`."""

    def old(pid: int) -> bool:
        while pid in now:
            parent, began = now[pid]
            if pid in before and before[pid][1] == began:
                return True
            pid = parent
        return False

    return {pid for pid in now if not old(pid)}


def below(root: int) -> set[int]:
    """Find the live descendants of a process."""
    tree = parents()
    found: set[int] = set()
    fresh = {root}
    while fresh:
        fresh = {pid for pid, parent in tree.items() if parent in fresh and pid not in found}
        found |= fresh
    return found


def send_signal(pid: int, number: int) -> None:
    """Send a signal; ignore a process that is already gone."""
    try:
        os.kill(pid, number)
    except OSError:
        return


def stop(pid: int) -> None:
    """Stop a process and wait until it has stopped, so that a fork in progress is complete."""
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
    """Kill all descendants of a process that is stopped or does not fork. They are stopped first, so that a fork bomb
    cannot outrun this."""
    for _ in range(100):
        stopped: set[int] = set()
        for _ in range(1000):
            fresh = family(root).keys() - stopped
            if not fresh:
                break
            for pid in fresh:
                send_signal(pid, sig.SIGSTOP)
            stopped |= fresh
        if not stopped:
            return
        for pid in stopped:
            send_signal(pid, sig.SIGKILL)
        await_end(root, stopped)


def kill_new(root: int, before: Family, spare: int, on_stopped: Callable[[], None]) -> None:
    """Kill the descendants of a process that are new since `before`, except `spare`, which is stopped. `on_stopped` is
    called when all are stopped."""
    until = time.monotonic() + 2
    while time.monotonic() < until:
        stopped: set[int] = set()
        while time.monotonic() < until and (fresh := since(before, family(root)) - stopped - {spare}):
            for pid in fresh:
                send_signal(pid, sig.SIGSTOP)
            stopped |= fresh
        on_stopped()
        if not stopped:
            return
        for pid in stopped:
            send_signal(pid, sig.SIGKILL)
        await_end(root, stopped)


def await_end(root: int, killed: set[int]) -> None:
    """Wait for the end of killed descendants of a process."""
    until = time.monotonic() + 0.5
    while killed & family(root).keys() and time.monotonic() < until:
        time.sleep(0.001)
