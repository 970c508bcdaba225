"""The logs of the worker's sandboxes: read from those that run, and kept for a while after their end.

1. A sandbox's log is what the protocol `Logs` returns: the latest lines about what happened in it. Without that
   protocol it is empty.
2. When a sandbox is stopped, its log is read a last time. The admin gets it with the answer, and keeps it.
3. The protocol returns the whole log each time. A follower gets the lines that were not in the last one.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator

from ale.errors import AleError
from ale.specs.sandbox import Sandbox
from ale.specs.sandbox_protocols import Logs
from ale_rock.log_text import the_end
from ale_rock.worker.validation import readable

MOST_BYTES = 64 << 10
"""How much of one log is returned, from its end."""
KEPT_CHARS = 16 << 20
"""How much is kept of the logs of ended sandboxes, all together."""
READ_S = 1.0
LOOK_S = 0.5


class SandboxLogs:
    """The logs of one worker."""

    def __init__(self) -> None:
        self._live: dict[str, Sandbox] = {}
        self._ended: OrderedDict[str, str] = OrderedDict()
        self._ended_chars = 0

    def begin(self, sandbox_id: str, sandbox: Sandbox) -> None:
        """Add a sandbox that has started, under the worker's id for it. The log of an older one of that id is
        dropped."""
        self._forget(sandbox_id)
        self._live[sandbox_id] = sandbox

    async def stop(self, sandbox_id: str, sandbox: Sandbox) -> None:
        """Stop a sandbox, and keep its log."""
        before = await read(sandbox)
        try:
            await sandbox.stop()
        finally:
            # Some logs are shorter once the sandbox is stopped, and all have one line more, about the stop.
            lines = before + new_lines(before, await read(sandbox))
            if self._live.get(sandbox_id) is sandbox:
                del self._live[sandbox_id]
                self._keep(sandbox_id, the_end("".join(lines), MOST_BYTES))

    async def text(self, sandbox_id: str) -> str:
        """Return the log of a sandbox, whether it runs or has ended; of an unknown one the empty text."""
        sandbox = self._live.get(sandbox_id)
        return self._ended.get(sandbox_id, "") if sandbox is None else the_end("".join(await read(sandbox)), MOST_BYTES)

    async def follow(self, sandbox_id: str) -> AsyncIterator[str]:
        """Yield the log of a sandbox, and then each new line, until the sandbox has ended."""
        seen: list[str] = []
        running = True
        while running:
            running = sandbox_id in self._live
            now = (await self.text(sandbox_id)).splitlines(keepends=True)
            new, seen = new_lines(seen, now), now
            if new:
                yield "".join(new)
            if running:
                await asyncio.sleep(LOOK_S)

    def _keep(self, sandbox_id: str, text: str) -> None:
        self._forget(sandbox_id)
        self._ended[sandbox_id] = text
        self._ended_chars += len(text)
        while self._ended_chars > KEPT_CHARS:
            self._forget(next(iter(self._ended)))

    def _forget(self, sandbox_id: str) -> None:
        self._ended_chars -= len(self._ended.pop(sandbox_id, ""))


async def read(sandbox: Sandbox) -> list[str]:
    """Return the lines of a sandbox's log; no lines if it has no log, or cannot return it now."""
    if not isinstance(sandbox, Logs):
        return []
    try:
        async with asyncio.timeout(READ_S):
            return readable(await sandbox.logs()).splitlines(keepends=True)
    except (AleError, OSError):  # a log that cannot be read must not keep a sandbox from being stopped
        return []


def new_lines(before: list[str], now: list[str]) -> list[str]:
    """Return the lines of `now` that are not in `before`; repeated lines are counted."""
    left = Counter(before)
    new = []
    for line in now:
        if left[line]:
            left[line] -= 1
        else:
            new.append(line)
    return new
