"""What the parts of the resident use of its loop (`loop.Loop`). Only type checkers import this file: the parts would
otherwise have to import the loop, which imports them.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any, Protocol

from ale_sandbox.resident.network.relay_process import RelayProcess
from ale_sandbox.resident.privileges import Rights
from ale_sandbox.resident.reset.baseline import Baseline


class Resident(Protocol):
    """The loop and its state."""

    control: int
    commands: dict[int, Any]
    """The running commands (`command.Command`) by the numbers of their calls; `by_fd` by their pipes."""
    by_fd: dict[int, Any]
    shells: dict[int, Any]
    """The open shells (`shells.shell.Shell`)."""
    ports: dict[int, Any]
    """The connections to ports (`network.ports.PortConnection`)."""
    watched: dict[int, Callable[[], None]]
    newborn: set[int]
    poll: select.epoll
    workdir: str
    shell: str
    rights: Rights
    rlimits: dict[str, int]
    env: dict[bytes, bytes]
    relay: RelayProcess | None
    baseline: Baseline | OSError | None
    resetting: Any
    """The reset that is under way (`reset.cleanup.Reset`), or None."""
    used: bool
    transfers: Any
    """The transfers of trees (`trees.transfers.Transfers`), or None."""

    def use_connection(self, control: int) -> None: ...
    def send(self, call: int, kind: bytes, fields: list[bytes]) -> None: ...
    def end(self) -> None: ...
    def keep_relay(self) -> None: ...
    def stream(self, call: int, kind: bytes, fields: list[bytes]) -> None: ...
    def start(self, call: int, fields: list[bytes]) -> None: ...
    def forget_all(self) -> None: ...
    def drain(self, fd: int) -> None: ...
    def finish(self, command: Any, exit_code: int) -> None: ...
    def kill(self, command: Any) -> None: ...
    def kill_all(self) -> None: ...
