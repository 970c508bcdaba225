"""The connections that sandboxes were refused by their network policy, for the runs that own the sandboxes.

A provider reports a refused connection as an event of its run (`Channel.event`). A worker has no run. It keeps the
refused connections of each sandbox in their order, and a follower asks for those after a number. So no connection is
missed or reported twice when the follower's connection breaks off or the admin is restarted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from ale.specs.driver import Channel
from ale_rock.schemas import RefusedConnection

MOST_KEPT = 2000
"""How many are kept of one sandbox; an egress gate of ALE reports fewer than that one by one."""
QUIET_S = 20.0
"""Seconds without a refused connection after which an empty line shows that the stream lives."""


@dataclass(eq=False, slots=True)
class RefusedConnections:
    """The refused connections of one sandbox."""

    lines: list[bytes] = field(default_factory=list)
    ended: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        """Wake the followers."""
        news, self.news = self.news, asyncio.Event()
        news.set()


class RefusedConnectionChannel(Channel):
    """The channel of a worker's provider, by whose own ids sandboxes are named here."""

    def __init__(self) -> None:
        self._of: dict[str, RefusedConnections] = {}

    def begin(self, sandbox_id: str) -> None:
        """Keep the refused connections of a sandbox with a network policy from now on."""
        self._of[sandbox_id] = RefusedConnections()

    def end(self, sandbox_id: str) -> None:
        """Forget a sandbox that has ended; its followers get the rest."""
        found = self._of.pop(sandbox_id, None)
        if found is not None:
            found.ended = True
            found.wake()

    def close(self) -> None:
        """Forget all: the worker leaves, and its sandboxes end with it."""
        for sandbox_id in list(self._of):
            self.end(sandbox_id)

    def event(self, kind: str, **data: Any) -> None:
        found = self._of.get(str(data.get("sandbox")))
        if kind == "network_refused" and found is not None and len(found.lines) < MOST_KEPT:
            found.lines.append(RefusedConnection.model_validate(data).model_dump_json().encode() + b"\n")
            found.wake()

    async def follow(self, sandbox_id: str, after: int) -> AsyncGenerator[bytes, None]:
        """Yield the refused connections of a sandbox after the first `after` as they come, each a line of JSON, and
        `null` at its end. Without a network policy that comes at once."""
        found = self._of.get(sandbox_id)
        while found is not None:
            ended, news = found.ended, found.news
            new, after = found.lines[after:], max(after, len(found.lines))
            if new:
                yield b"".join(new)
            if ended:
                break
            try:
                await asyncio.wait_for(news.wait(), QUIET_S)
            except TimeoutError:
                yield b"\n"
        yield b"null\n"
