"""The messages that an actor sends to the run: events, calls of observers, log lines, and reports about engines.

The actor puts messages into its `Outbox`, and the run takes them by a call that waits for some. So they keep their
order. They would not if the actor called the run, because `asyncio` actors begin calls in any order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from ale.registry.hooks import Hooks
from ale.registry.validation import describe_error
from ale.specs.driver import Channel
from ale_ray.timer_coalescing import next_tick

log = logging.getLogger("ale.cluster")
GATHER_S = 0.3
"""The time between two deliveries of a busy actor. Each delivery costs the run half a millisecond (`call_batching.py`),
so messages are gathered for this long; the first message after a pause is delivered at once."""


@dataclass(frozen=True, slots=True)
class Event:
    """`Channel.event`."""

    kind: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class HookCall:
    """A call of the run's observers."""

    hook: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sampling:
    """A request of an episode came to an engine (`begins`), or ended there."""

    episode: str
    begins: bool


@dataclass(frozen=True, slots=True)
class EngineReport:
    """An engine finished a generation (`works`), or broke one off."""

    engine: str
    works: bool


@dataclass(frozen=True, slots=True)
class PoolMetrics:
    """The metrics of a worker's sandbox pools, by their names."""

    pools: dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of the actor's log."""

    logger: str
    level: int
    text: str


@dataclass(frozen=True, slots=True)
class ActorClosed:
    """The actor has closed what it had: this is its last message."""


@dataclass(frozen=True, slots=True)
class PickledMessage:
    """A message that was pickled by itself, so that one that cannot be pickled loses no other message."""

    message: bytes


class Outbox:
    """The messages of an actor that the run has not taken yet."""

    def __init__(self) -> None:
        self._messages: deque[Any] = deque()
        self._filled = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        """That of `take`."""
        self._newest = 0
        """The number of the newest call of `take`."""
        self._next = 0.0
        """When the next delivery may be, by the clock of the day: that of other actors is then too."""

    def put(self, message: Any) -> None:
        """Add a message, from any thread."""
        self._messages.append(message)
        if self._loop is not None:
            with suppress(RuntimeError):  # it is closed: the process ends
                self._loop.call_soon_threadsafe(self._filled.set)

    def pack(self, message: Any) -> None:
        """Add a message with values of a plugin as they are now. One that cannot be pickled is logged instead."""
        try:
            packed = PickledMessage(cloudpickle.dumps(message))
        except Exception as error:
            log.warning("a message to the run cannot be sent: %s", describe_error(error))
        else:
            self.put(packed)

    async def take(self, number: int = 0) -> list[Any]:
        """Wait for messages and return them, in their order. A call of a larger number takes them instead of this one,
        which then returns none."""
        self._loop = asyncio.get_running_loop()  # before the look: what is put after that sets the event
        self._newest = max(number, self._newest)
        self._filled.set()  # for the call before
        while not self._messages and number == self._newest:
            self._filled.clear()
            await self._filled.wait()
        if number == self._newest:
            await asyncio.sleep(min(self._next - time.time(), 2 * GATHER_S))  # the clock may have been set back
        if number < self._newest:
            return []
        self._next = next_tick(time.time(), GATHER_S)
        return [self._messages.popleft() for _ in range(len(self._messages))]


def unpack(message: Any) -> Any:
    """Return a message as it was put in."""
    return cloudpickle.loads(message.message) if isinstance(message, PickledMessage) else message


class RemoteChannel(Channel):
    """The channel of drivers in an actor."""

    def __init__(self, outbox: Outbox, redact: Callable[[str], str]) -> None:
        self._outbox, self._redact = outbox, redact

    def event(self, kind: str, **data: Any) -> None:
        self._outbox.pack(Event(kind, data))

    def notify(self, hook: str, **arguments: Any) -> None:
        self._outbox.pack(HookCall(hook, arguments))

    def redact(self, text: str) -> str:
        return self._redact(text)


class RemoteHooks(Hooks):
    """The observers, which are in the run's process; `implemented` are the hooks that any of them has."""

    def __init__(self, outbox: Outbox, implemented: Collection[str]) -> None:
        super().__init__()
        self._outbox, self._implemented = outbox, frozenset(implemented)

    def has_implementation(self, *names: str) -> bool:
        return not self._implemented.isdisjoint(names)

    def call(self, name: str, receive: Callable[[Any], None] = lambda answer: None, **arguments: Any) -> None:
        """Have the observers called; no answer comes back."""
        if name in self._implemented:
            self._outbox.pack(HookCall(name, arguments))


class RemoteLog(logging.Handler):
    """It sends warnings of ALE and its plugins to the run's log."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__(logging.WARNING)
        self._outbox = outbox

    def emit(self, record: logging.LogRecord) -> None:
        """Send a line."""
        try:
            self._outbox.put(LogLine(record.name, record.levelno, record.getMessage()))
        except Exception:  # its arguments do not fit its text
            self.handleError(record)


def send_log(outbox: Outbox) -> None:
    """Send the warnings of this process."""
    logger = logging.getLogger("ale")
    logger.handlers[:] = [RemoteLog(outbox)]
    logger.propagate = False
