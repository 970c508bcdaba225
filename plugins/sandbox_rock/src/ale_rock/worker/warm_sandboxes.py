"""Sandboxes that are started ahead, so that a start finds one that is ready.

1. Sandboxes are of one *kind* if their specs differ only in what a running one can still get: name, environment, files,
   labels, and when it ends. Once a kind was asked for, as many sandboxes of it are kept ready as the settings say for
   its image, until nobody has asked for the kind for `UNUSED_S`.
2. They take nothing from others. They start while no sandbox that was asked for is starting, and only if the worker's
   memory is enough for all together. When it no longer is, they are stopped.
3. A sandbox that is taken was never used. It gets its environment by a reset, and errors call it by the name of its
   start from then on; its provider lists it under its own name.

A run's pool (`ale.rollout.sandbox_pool`) does not replace this. It bounds sandboxes by their number and not by memory,
it gives a sandbox to one episode after another, which users of a service must not share, and it resets a warm sandbox
at each start. Measured with it, a warm start to the answer of its first command takes 1.28 times as long for one start
and 1.82 times for eight at once (both sides in turn on one machine of two cores, median of six rounds).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from ale.errors import AleError, ConfigError
from ale.registry.validation import one_line_error
from ale.specs.driver import Lifecycle
from ale.specs.sandbox import Sandbox, SandboxProvider, SandboxSpec
from ale.specs.sandbox_protocols import Resets
from ale_sandbox.sandboxes.sandbox import ResidentSandbox

log = logging.getLogger("ale.rock.worker")
EVERY_IMAGE = "*"
"""In the settings: any image."""
DEFAULT_MIB = 2048
"""The memory that a sandbox without a limit counts as, as in the admin."""
KINDS = 8
UNUSED_S = 1800.0
"""Seconds after its last request from which a kind is no longer kept ready."""
QUIET_S, LOOK_S = 0.1, 5.0
AT_ONCE = 4
MOST_BACKOFF_S = 60.0


@dataclass(eq=False, slots=True)
class SandboxKind:
    """A kind, and its sandboxes that are ready, the oldest first."""

    spec: SandboxSpec
    count: int
    ready: deque[ResidentSandbox] = field(default_factory=deque)
    asked_at: float = 0.0
    failures: int = 0
    retry_at: float = 0.0


class WarmSandboxes(Lifecycle):
    """Starts the sandboxes of a worker, some of them ahead. `held_bytes` returns the memory that is promised to those
    that run; `prepare` brings an image to the machine."""

    def __init__(
        self,
        provider: SandboxProvider,
        counts: Mapping[str, int],
        memory_bytes: int,
        held_bytes: Callable[[], int],
        prepare: Callable[[str], Awaitable[object]],
    ) -> None:
        self._provider, self._counts, self._memory_bytes = provider, counts, memory_bytes
        self._held_bytes, self._prepare = held_bytes, prepare
        self._kinds: OrderedDict[str, SandboxKind] = OrderedDict()
        """By key, ordered by the last request."""
        self._starting: list[int] = []
        """The memory of requested sandboxes that are starting now."""
        self._quiet_at = 0.0
        self._news = asyncio.Event()
        self._caretaker: asyncio.Task[None] | None = None
        self._stopping: set[asyncio.Task[None]] = set()

    @property
    def count(self) -> int:
        """How many sandboxes are ready."""
        return sum(len(kind.ready) for kind in self._kinds.values())

    async def start(self) -> None:
        """Begin, once the provider has started. Raises `ConfigError` for settings that it cannot meet."""
        if not self._counts:
            return
        if not issubclass(self._provider.sandbox_type, ResidentSandbox):
            raise ConfigError("--warm: sandboxes of this provider cannot be started ahead; leave it out.")
        named = sorted(self._counts.keys() - {EVERY_IMAGE})
        if named and "images" not in self._provider.capabilities:
            raise ConfigError(f"--warm {named[0]}=...: this provider has no images; write --warm NUMBER.")
        self._caretaker = asyncio.create_task(self._keep_ready(named))

    async def close(self) -> None:
        """Stop all sandboxes that are ready."""
        caretaker, self._caretaker = self._caretaker, None
        if caretaker is not None:
            caretaker.cancel()
            await asyncio.gather(caretaker, return_exceptions=True)
        for key in list(self._kinds):
            self._drop(key)
        await asyncio.gather(*self._stopping, return_exceptions=True)

    async def start_sandbox(self, spec: SandboxSpec) -> Sandbox:
        """Return a sandbox that is ready, or start a new one. Raises as the provider does."""
        if self._caretaker is None:
            return await self._provider.start_sandbox(spec)
        memory = memory_of(spec)
        self._starting.append(memory)
        try:
            box = self._take(spec)
            if box is not None and await self._hand_over(box, spec):
                return box
            self._make_room()
            return await self._provider.start_sandbox(spec)
        finally:
            self._starting.remove(memory)
            self._quiet_at = time.monotonic() + QUIET_S
            self._news.set()

    # --- those that are ready

    def _take(self, spec: SandboxSpec) -> ResidentSandbox | None:
        """Note that a kind was asked for; return a ready sandbox of it, if there is one."""
        count = self._counts.get(spec.image or self._provider.default_image or "", self._counts.get(EVERY_IMAGE, 0))
        can_get_env = not spec.env or issubclass(self._provider.sandbox_type, Resets)
        if not count or spec.from_snapshot is not None or spec.resources.gpus or not can_get_env:
            return None
        own: dict[str, object] = {"id": None, "env": {}, "files": {}, "labels": {}, "lifetime_s": None, "idle_s": None}
        bare = spec.model_copy(update=own)
        key = bare.model_dump_json()
        kind = self._kinds.setdefault(key, SandboxKind(bare, count))
        self._kinds.move_to_end(key)
        kind.asked_at = time.monotonic()
        while len(self._kinds) > KINDS:
            self._drop(next(iter(self._kinds)))
        while kind.ready:
            box = kind.ready.popleft()
            if is_alive(box):
                return box
            self._stop(box)
        return None

    async def _hand_over(self, box: ResidentSandbox, spec: SandboxSpec) -> bool:
        """Give a sandbox what its kind leaves open; returns whether that worked."""
        box.channel.sandbox_id = spec.id or box.id
        try:
            if spec.env:
                assert isinstance(box, Resets)
                await box.reset(box.spec.model_copy(update={"env": spec.env, "files": spec.files}))
            elif spec.files:
                await box.upload(spec.files)
        except BaseException as error:
            self._stop(box)
            if not isinstance(error, AleError):
                raise
            log.warning("A sandbox that was started ahead is not used: %s", one_line_error(error))
            return False
        times = {"lifetime_s": spec.lifetime_s, "idle_s": spec.idle_s}
        box.spec = box.spec.model_copy(update={"files": spec.files, "labels": spec.labels, **times})
        box.begin_timers()
        return True

    def _make_room(self) -> None:
        """Stop sandboxes until the memory is enough for those that were asked for, the least wanted kind first."""
        while self._lacks_bytes(0) and (kind := next(self._with_ready(), None)) is not None:
            self._stop(kind.ready.popleft())

    def _lacks_bytes(self, more: int) -> bool:
        ready = sum(len(kind.ready) * memory_of(kind.spec) for kind in self._kinds.values())
        return self._held_bytes() + sum(self._starting) + ready + more > self._memory_bytes

    def _with_ready(self) -> Iterator[SandboxKind]:
        return (kind for kind in self._kinds.values() if kind.ready)

    def _drop(self, key: str) -> None:
        for box in self._kinds.pop(key).ready:
            self._stop(box)

    def _stop(self, box: ResidentSandbox) -> None:
        stopping = asyncio.create_task(box.stop())
        self._stopping.add(stopping)
        stopping.add_done_callback(self._stopped)

    def _stopped(self, stopping: asyncio.Task[None]) -> None:
        self._stopping.discard(stopping)
        if not stopping.cancelled() and stopping.exception() is not None:
            log.warning("A sandbox that was started ahead was not removed: %s", stopping.exception())

    # --- the caretaker

    async def _keep_ready(self, images: list[str]) -> None:
        for image in images:
            try:
                await self._prepare(image)
            except (AleError, OSError) as error:
                log.warning("The image %s is not brought to this machine ahead: %s", image, one_line_error(error))
        while True:
            self._news.clear()
            self._tidy()
            wanted = self._wanted()
            if wanted and not self._starting and time.monotonic() >= self._quiet_at:
                await asyncio.gather(*map(self._start_ahead, wanted))
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), QUIET_S if wanted else LOOK_S)

    def _tidy(self) -> None:
        """Stop sandboxes that have died, and kinds that were not asked for in a while."""
        for key, kind in list(self._kinds.items()):
            if time.monotonic() - kind.asked_at > UNUSED_S:
                self._drop(key)
            for box in [box for box in kind.ready if not is_alive(box)]:
                kind.ready.remove(box)
                self._stop(box)

    def _wanted(self) -> list[SandboxKind]:
        """Return the kinds of which a sandbox is to be started now, once for each; the latest requested kind first."""
        now, wanted, more = time.monotonic(), list[SandboxKind](), 0
        for kind in reversed(self._kinds.values()):
            for _ in range(kind.count - len(kind.ready) if kind.retry_at <= now else 0):
                more += memory_of(kind.spec)
                if len(wanted) == AT_ONCE or self._lacks_bytes(more):
                    return wanted
                wanted.append(kind)
        return wanted

    async def _start_ahead(self, kind: SandboxKind) -> None:
        try:
            box = await self._provider.start_sandbox(kind.spec)
        except (AleError, OSError) as error:
            kind.failures += 1
            kind.retry_at = time.monotonic() + min(MOST_BACKOFF_S, 2.0**kind.failures)
            log.warning("No sandbox could be started ahead: %s", one_line_error(error))
            return
        assert isinstance(box, ResidentSandbox)
        kind.failures = 0
        if kind in self._kinds.values() and not self._lacks_bytes(memory_of(kind.spec)):
            kind.ready.append(box)
        else:
            self._stop(box)


def memory_of(spec: SandboxSpec) -> int:
    """Return the bytes of memory that are promised to a sandbox."""
    return (spec.resources.memory_mib or DEFAULT_MIB) << 20


def is_alive(box: ResidentSandbox) -> bool:
    """Whether a sandbox runs and is not being stopped."""
    return box.stopping is None and not box.channel.closed.is_set()


def read_counts(given: list[str]) -> dict[str, int]:
    """Return what `--warm` says: by image, or for every image, how many are kept ready. Raises `ConfigError`."""
    counts = {}
    for text in given:
        image, _, number = text.rpartition("=")
        if not number.isascii() or not number.isdigit() or not 0 < int(number) <= 10_000:
            raise ConfigError(f"--warm takes a number of sandboxes, or IMAGE=NUMBER as in python:3.11=4, not {text!r}.")
        counts[image or EVERY_IMAGE] = int(number)
    return counts
