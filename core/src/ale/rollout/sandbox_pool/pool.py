"""The sandbox pool: a provider in front of another one, which keeps warm sandboxes and reuses them.

1. A request takes an idle sandbox of its kind, reset to its environment and files; else a new one is started if there
   are fewer than `max_sandboxes`; else the request waits, up to `wait_s`. Requests are served in order, and an idle
   sandbox of another kind is stopped if a request needs its place. A *kind* is a spec without id, environment, files
   and labels.
2. A sandbox that comes back is reset at once, in the background. If the provider has verified that nothing is left, it
   is ready for the next request; otherwise it is stopped.
3. A caretaker task keeps `warm` sandboxes of each kind ready, and stops those unused for `idle_s`.

Every sandbox has a slot (`slots.py`) from before its start until its stop is complete; limits and metrics count slots.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import random
import time
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from ale.config.pool import PoolConfig
from ale.errors import AleError, SandboxError, UncleanError
from ale.registry.validation import one_line_error
from ale.rollout.sandbox_pool.lease import LeasedSandbox
from ale.rollout.sandbox_pool.slots import Slot, SlotRequest, Slots
from ale.rollout.sandbox_pool.times import Times
from ale.specs.driver import Channel, Lifecycle
from ale.specs.sandbox import SandboxInfo, SandboxProvider, SandboxSpec
from ale.specs.sandbox_protocols import BuildsDockerfiles, KeepsSnapshots, Resets
from ale.task import ImageBuild

log = logging.getLogger("ale.sandbox_pool")

RESET_TIMEOUT_S = 60.0
BACKOFF_S, MOST_BACKOFF_S = 0.5, 60.0
COUNTED = ("requests", "warm_hits", "cold_starts", "start_failures", "timeouts", "evicted", "resets", "resets_failed")


class SandboxPool(Lifecycle, SandboxProvider):
    """Lends the sandboxes of a provider, which it does not start or close: it opens after it and closes before it."""

    def __init__(self, provider: SandboxProvider, config: PoolConfig, channel: Channel | None = None) -> None:
        self.capabilities = provider.capabilities  # type: ignore[misc]  # those on this machine
        self.sandbox_type = provider.sandbox_type  # type: ignore[misc]
        self.default_image = provider.default_image
        self.provider, self.pool, self.channel = provider, config, channel or Channel()
        self.slots = Slots(config.max_sandboxes, config.starts_at_once, self._evict)
        self.counts: Counter[str] = Counter()
        self.waits, self.starts, self.resets = Times("wait_s"), Times("start_s"), Times("reset_s")
        self._tasks: dict[asyncio.Task[Any], bool] = {}
        """Background tasks, and whether closing the pool cancels each."""
        self._open = False

    # --- lifetime

    async def start(self) -> None:
        """Open for requests."""
        self._open = True
        self._spawn(self._take_care(), cancel=True)

    async def close(self) -> None:
        """Stop every sandbox, even leased and starting ones; waiting requests get a `SandboxError`."""
        self._open = False
        self.slots.close()
        for request in self.slots.waiting:
            if not request.slot.done():
                request.slot.set_exception(self._closed_error())
        for task in [task for task, cancel in self._tasks.items() if cancel]:
            task.cancel()
        while True:
            for slot in list(self.slots.all):
                self._discard(slot)
            if not self._tasks:
                return
            await asyncio.wait(self._tasks)

    def _closed_error(self) -> SandboxError:
        return SandboxError("The pool of sandboxes is closed; use it inside `async with pool:`.")

    def _spawn(self, work: Coroutine[Any, Any, None], *, cancel: bool) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = cancel
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and task.exception() is not None:
            log.debug("in the pool: %s", task.exception())  # its caller gets it

    # --- requests

    async def start_sandbox(self, spec: SandboxSpec) -> LeasedSandbox:
        """Lease a sandbox; its `stop` gives it back. Raises `SandboxError` too if none comes free in time."""
        own = spec.id is not None or spec.lifetime_s is not None or spec.idle_s is not None
        reusable = issubclass(self.sandbox_type, Resets) and self.pool.max_uses > 1 and not own
        kind, began, first = self.slots.kind_of(spec), time.monotonic(), False
        until = asyncio.get_running_loop().time() + self.pool.wait_s
        self.counts["requests"] += 1
        while True:
            slot = await self._wait_for_slot(
                SlotRequest(kind, reusable, asyncio.get_running_loop().create_future()), until, first
            )
            if slot.sandbox is None:
                await self._start_shielded(slot, spec)
                self.counts["cold_starts"] += 1
            elif await self._make_ready(slot, spec):
                self.counts["warm_hits"] += 1
            else:
                first = True  # it keeps its turn, because its sandbox was dead
                continue
            if not self._open:
                self._discard(slot)
                raise self._closed_error()
            slot.uses += 1
            self.waits.add(began)
            return LeasedSandbox(slot.box, partial(self._take_back, slot))

    async def _wait_for_slot(self, request: SlotRequest, until: float, first: bool) -> Slot:
        """Wait for a slot: one with a warm sandbox, or a new one."""
        if not self._open:
            raise self._closed_error()
        (self.slots.waiting.appendleft if first else self.slots.waiting.append)(request)
        self.slots.serve()
        try:
            async with asyncio.timeout_at(until):
                return await request.slot
        except TimeoutError:
            if not request.slot.cancelled():
                return request.slot.result()  # granted at the last moment
            self.counts["timeouts"] += 1
            raise SandboxError(self._explain_timeout()) from None
        except asyncio.CancelledError:
            if not request.slot.cancelled() and request.slot.exception() is None:
                self._release_unused(request.slot.result())
            raise
        finally:
            with suppress(ValueError):
                self.slots.waiting.remove(request)

    def _evict(self, slot: Slot) -> None:
        self.counts["evicted"] += 1
        self._discard(slot)

    def _explain_timeout(self) -> str:
        most = self.pool.max_sandboxes
        there = ", ".join(f"{count} {state}" for state, count in sorted(self.slots.states().items())) or "none"
        mend = "raise pool.max_sandboxes or pool.wait_s, or lower rollout.concurrency"
        if most is None:
            mend = "see why starts take so long, or raise pool.starts_at_once or pool.wait_s"
        return (
            f"No sandbox came free within {self.pool.wait_s:g} s: of {'any number' if most is None else most} there "
            f"are {len(self.slots.all)} ({there}), and {len(self.slots.waiting)} requests wait; {mend}."
        )

    # --- a slot's life

    async def _start_shielded(self, slot: Slot, spec: SandboxSpec) -> None:
        """Start the slot's sandbox. A cancelled caller does not wait until the sandbox is stopped again."""
        task = self._spawn(self._start(slot, spec), cancel=True)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.add_done_callback(lambda _: self._discard(slot))
            task.cancel()
            raise
        if task.cancelled():
            raise self._closed_error()
        task.result()

    async def _start(self, slot: Slot, spec: SandboxSpec) -> None:
        began = time.monotonic()
        try:
            slot.sandbox = await self.provider.start_sandbox(spec)
        except BaseException:
            self.counts["start_failures"] += 1
            self.slots.remove_slot(slot)
            raise
        self.starts.add(began)
        slot.state = "lent"
        self.slots.serve()

    async def _make_ready(self, slot: Slot, spec: SandboxSpec) -> bool:
        """Reset a warm sandbox to the request's environment and files; return False if it is dead."""
        try:
            await self._reset(slot, spec)
        except (AleError, TimeoutError) as error:
            self._note_failure(slot, error)
            self._discard(slot)
            return False
        except BaseException:
            self._discard(slot)
            raise
        return True

    async def _reset(self, slot: Slot, spec: SandboxSpec) -> None:
        began = time.monotonic()
        async with asyncio.timeout(RESET_TIMEOUT_S):
            assert isinstance(slot.box, Resets)
            await slot.box.reset(spec)
        self.counts["resets"] += 1
        self.resets.add(began)

    def _take_back(self, slot: Slot, busy: bool) -> asyncio.Task[None] | None:
        """Take a leased sandbox back; return the task that stops it, if it is not reused."""
        if slot.state != "lent":
            return None  # `close` stops it
        if self._open and slot.reusable and not busy and slot.uses < self.pool.max_uses:
            slot.state, slot.since = "resetting", time.monotonic()
            self._spawn(self._renew(slot), cancel=True)
            return None
        return self._discard(slot)

    async def _renew(self, slot: Slot) -> None:
        """Reset a returned sandbox and make it idle; stop it if that fails for any reason."""
        try:
            await self._reset(slot, slot.kind.spec)
        except Exception as error:
            self._note_failure(slot, error)
            self._discard(slot)
        else:
            self._set_idle(slot)

    def _note_failure(self, slot: Slot, error: Exception) -> None:
        what = error.what if isinstance(error, UncleanError) else "failed"
        self.counts["resets_failed"] += 1
        self.counts[f"resets_failed/{what}"] += 1
        log.info("the sandbox %s is not used again: %s", slot.box.id, one_line_error(error))
        self.channel.event("sandbox_not_reset", sandbox_id=slot.box.id, what=what, reason=one_line_error(error))

    def _set_idle(self, slot: Slot) -> None:
        slot.state, slot.since = "idle", time.monotonic()
        self.slots.serve()

    def _release_unused(self, slot: Slot) -> None:
        """Release a slot that was granted to a request that is gone."""
        if slot.sandbox is None:
            self.slots.remove_slot(slot)
        else:
            slot.state = "idle"
            self.slots.serve()

    def _discard(self, slot: Slot) -> asyncio.Task[None] | None:
        """Begin to stop a slot's sandbox, if it has one."""
        if slot.sandbox is None or slot.state == "stopping" or slot not in self.slots.all:
            return None
        slot.state = "stopping"
        return self._spawn(self._stop(slot), cancel=False)

    async def _stop(self, slot: Slot) -> None:
        try:
            await slot.box.stop()
        except SandboxError as error:
            log.warning("the sandbox %s was not removed: %s", slot.box.id, error)
            raise
        finally:
            self.slots.remove_slot(slot)

    # --- the caretaker

    async def _take_care(self) -> None:
        while True:
            self.slots.changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._stop_and_warm()):
                    await self.slots.changed.wait()

    def _stop_and_warm(self) -> float | None:
        """Stop sandboxes idle for too long and start warm ones; return the seconds until the next work, if known."""
        now, due = time.monotonic(), [float("inf")]
        ready = Counter(slot.kind.key for slot in self.slots.within("idle", "warming", "resetting"))
        for slot in sorted(self.slots.within("idle"), key=lambda slot: slot.since):
            if ready[slot.kind.key] > (self.pool.warm if slot.kind.key in self.slots.kinds else 0):
                due.append(slot.since + self.pool.idle_s)
                if due[-1] <= now:
                    due.pop()
                    ready[slot.kind.key] -= 1
                    self._discard(slot)
        for kind in self.slots.kinds.values():
            while ready[kind.key] < self.pool.warm and self.slots.may_start and not self.slots.waiting:
                if kind.retry_at > now:
                    due.append(kind.retry_at)
                    break
                ready[kind.key] += 1
                self._spawn(self._warm(self.slots.new(kind, True, "warming")), cancel=True)
        return None if min(due) == float("inf") else max(0.0, min(due) - now)

    async def _warm(self, slot: Slot) -> None:
        """Start a warm sandbox before a request. Failures are retried with growing delays."""
        kind = slot.kind
        try:
            slot.sandbox = await self.provider.start_sandbox(kind.spec)
        except BaseException as error:
            delay_s = min(MOST_BACKOFF_S, BACKOFF_S * 2**kind.failures) * random.uniform(0.5, 1.5)
            kind.failures, kind.retry_at = min(kind.failures + 1, 16), time.monotonic() + delay_s
            self.counts["start_failures"] += 1
            log.warning(
                "no warm sandbox could be started, the next try is in %.1f s: %s", delay_s, one_line_error(error)
            )
            self.slots.remove_slot(slot)
            if not isinstance(error, Exception):
                raise
        else:
            kind.failures = 0
            self._set_idle(slot)

    # --- metrics, and calls for the provider

    def metrics(self) -> dict[str, float]:
        """Return counts since the start, sandboxes by state, and seconds of waits, starts and resets."""
        states = self.slots.states()
        now = {state: states[state] for state in ("idle", "resetting", "stopping")}
        now |= {"in_use": states["lent"], "starting": states["starting"] + states["warming"]}
        now["waiting"] = len(self.slots.waiting)
        times = (self.waits, self.starts, self.resets)
        named = {name: value for each in times for name, value in each.metrics().items()}
        return {
            name: float(value) for name, value in {**dict.fromkeys(COUNTED, 0), **self.counts, **now, **named}.items()
        }

    async def list(self) -> list[SandboxInfo]:
        return await self.provider.list()

    async def remove(self, sandbox_id: str) -> None:
        await self.provider.remove(sandbox_id)

    async def image_from(self, build: ImageBuild) -> str:
        """Let the provider build an image, if it can (capability `builds`)."""
        assert isinstance(self.provider, BuildsDockerfiles), "the capability says so"
        return await self.provider.image_from(build)

    async def snapshots(self) -> builtins.list[str]:
        """List the provider's snapshots, if it keeps any."""
        return await self.provider.snapshots() if isinstance(self.provider, KeepsSnapshots) else []

    async def remove_snapshot(self, name: str) -> None:
        """The provider's."""
        if isinstance(self.provider, KeepsSnapshots):
            await self.provider.remove_snapshot(name)
