"""Warm sandboxes: a pool in front of a provider, and a provider itself.

1. A request takes a sandbox that is ready, reset to its environment and files; else a new one is started where there are fewer
   than `max_sandboxes`; else it waits for its turn, up to `wait_s`. Who came first is served first, if need be by stopping
   an idle sandbox of another kind. A *kind* is a spec without id, environment, files and labels.
2. What comes back is reset at once, in the background. Where the provider has shown that nothing is left it is ready for the
   next request, else it is stopped.
3. A caretaker keeps `warm` sandboxes of each kind ready, and stops what nobody used for `idle_s`.

Every sandbox has a slot (`slots.py`) from before its start until its stop has ended: slots are what is limited and counted.
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

from ale.errors import AleError, ConfigError, SandboxError, UncleanError
from ale.rollout.leased import LeasedSandbox
from ale.rollout.pool_metrics import Times
from ale.rollout.slots import Request, Slot, Slots
from ale.run_config import PoolConfig
from ale.specs.sandbox import Sandbox, SandboxInfo, SandboxProvider, SandboxSpec
from ale.validation import one_line

log = logging.getLogger("ale.rollout.pool")

RESET_TIMEOUT_S = 60.0
BACKOFF_S, MOST_BACKOFF_S = 0.5, 60.0
COUNTED = (
    "requests", "warm_hits", "cold_starts", "start_failures", "timeouts", "evicted", "resets", "resets_failed",
)  # fmt: skip


class SandboxPool(SandboxProvider):
    """See the module. The provider is started and closed by whoever built it: the pool is opened after it, closed before it."""

    def __init__(self, provider: SandboxProvider, config: PoolConfig) -> None:
        super().__init__(provider.config, provider.context)
        self.capabilities = provider.capabilities  # type: ignore[misc]  # what this machine gives
        self.provider, self.pool = provider, config
        self.slots = Slots(config.max_sandboxes, config.starts_at_once, self._evict)
        self.counts: Counter[str] = Counter()
        self.waits, self.starts, self.resets = Times("wait_s"), Times("start_s"), Times("reset_s")
        self._tasks: dict[asyncio.Task[Any], bool] = {}
        """What runs in the background, and whether closing the pool cancels it."""
        self._open = False

    # --- lifetime

    async def start(self) -> None:
        """Open for requests."""
        if self.pool.warm and "reset" not in self.capabilities:
            raise ConfigError(
                f"pool.warm is {self.pool.warm}, and the provider {type(self.provider).__name__} cannot give warm sandboxes "
                "the files of an episode (capability 'reset'); set pool.warm to 0 or use another provider."
            )
        self._open = True
        self._spawn(self._take_care(), cancel=True)

    async def close(self) -> None:
        """Stop every sandbox, also those that are lent out or just being started; whoever waits gets a `SandboxError`."""
        self._open = False
        self.slots.close()
        for request in self.slots.waiting:
            if not request.slot.done():
                request.slot.set_exception(self._closed())
        for task in [task for task, cancel in self._tasks.items() if cancel]:
            task.cancel()
        while True:
            for slot in list(self.slots.all):
                self._discard(slot)
            if not self._tasks:
                return
            await asyncio.wait(self._tasks)

    def _closed(self) -> SandboxError:
        return SandboxError("The pool of sandboxes is closed; use it inside `async with pool:`.")

    def _spawn(self, work: Coroutine[Any, Any, None], *, cancel: bool) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = cancel
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and task.exception() is not None:
            log.debug("in the pool: %s", task.exception())  # whoever awaits it has it

    # --- requests

    async def start_sandbox(self, spec: SandboxSpec) -> LeasedSandbox:
        """A sandbox on loan: its `stop` gives it back. Raises `SandboxError` also where none comes free in time."""
        own = spec.id is not None or spec.lifetime_s is not None or spec.idle_s is not None
        reusable = "reset" in self.capabilities and self.pool.max_uses > 1 and not own
        kind, began, first = self.slots.kind_of(spec), time.monotonic(), False
        until = asyncio.get_running_loop().time() + self.pool.wait_s
        self.counts["requests"] += 1
        while True:
            slot = await self._turn(Request(kind, reusable, asyncio.get_running_loop().create_future()), until, first)
            if slot.sandbox is None:
                await self._started(slot, spec)
                self.counts["cold_starts"] += 1
            elif await self._made_ready(slot, spec):
                self.counts["warm_hits"] += 1
            else:
                first = True  # it had its turn, and found a dead sandbox
                continue
            if not self._open:
                self._discard(slot)
                raise self._closed()
            slot.uses += 1
            self.waits.add(began)
            return LeasedSandbox(slot.box, partial(self._take_back, slot))

    async def _turn(self, request: Request, until: float, first: bool) -> Slot:
        """A slot of the request's: with a warm sandbox in it, or a new one."""
        if not self._open:
            raise self._closed()
        (self.slots.waiting.appendleft if first else self.slots.waiting.append)(request)
        self.slots.serve()
        try:
            async with asyncio.timeout_at(until):
                return await request.slot
        except TimeoutError:
            if not request.slot.cancelled():
                return request.slot.result()  # in the very last moment
            self.counts["timeouts"] += 1
            raise SandboxError(self._crowded()) from None
        except asyncio.CancelledError:
            if not request.slot.cancelled() and request.slot.exception() is None:
                self._not_needed(request.slot.result())
            raise
        finally:
            with suppress(ValueError):
                self.slots.waiting.remove(request)

    def _evict(self, slot: Slot) -> None:
        self.counts["evicted"] += 1
        self._discard(slot)

    def _crowded(self) -> str:
        most = self.pool.max_sandboxes
        there = ", ".join(f"{count} {state}" for state, count in sorted(self.slots.states().items())) or "none"
        mend = "raise pool.max_sandboxes or pool.wait_s, or lower rollout.concurrency"
        if most is None:
            mend = "see why starts take so long, or raise pool.starts_at_once or pool.wait_s"
        return (
            f"No sandbox came free within {self.pool.wait_s:g} s: of {'any number' if most is None else most} there are "
            f"{len(self.slots.all)} ({there}), and {len(self.slots.waiting)} requests wait; {mend}."
        )

    # --- a slot's life

    async def _started(self, slot: Slot, spec: SandboxSpec) -> None:
        """Start the slot's sandbox. A caller that is cancelled does not wait until it has ended again."""
        task = self._spawn(self._start(slot, spec), cancel=True)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.add_done_callback(lambda _: self._discard(slot))
            task.cancel()
            raise
        if task.cancelled():
            raise self._closed()
        task.result()

    async def _start(self, slot: Slot, spec: SandboxSpec) -> None:
        began = time.monotonic()
        try:
            slot.sandbox = await self.provider.start_sandbox(spec)
        except BaseException:
            self.counts["start_failures"] += 1
            self.slots.gone(slot)
            raise
        self.starts.add(began)
        slot.state = "lent"
        self.slots.serve()

    async def _made_ready(self, slot: Slot, spec: SandboxSpec) -> bool:
        """Give a warm sandbox the request's environment and files; False where it turns out to be dead."""
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
            await slot.box.reset(spec)
        self.counts["resets"] += 1
        self.resets.add(began)

    def _take_back(self, slot: Slot, busy: bool) -> asyncio.Task[None] | None:
        """A loan is over; the task that stops the sandbox, where it is not used again."""
        if slot.state != "lent":
            return None  # stopped by `close`
        if self._open and slot.reusable and not busy and slot.uses < self.pool.max_uses:
            slot.state, slot.since = "resetting", time.monotonic()
            self._spawn(self._renew(slot), cancel=True)
            return None
        return self._discard(slot)

    async def _renew(self, slot: Slot) -> None:
        """Reset what came back, and have it ready; stop it where that fails, whatever the reason."""
        try:
            await self._reset(slot, slot.kind.spec)
        except Exception as error:
            self._note_failure(slot, error)
            self._discard(slot)
        else:
            self._now_idle(slot)

    def _note_failure(self, slot: Slot, error: Exception) -> None:
        what = error.what if isinstance(error, UncleanError) else "failed"
        self.counts["resets_failed"] += 1
        self.counts[f"resets_failed/{what}"] += 1
        log.info("the sandbox %s is not used again: %s", slot.box.id, one_line(error))
        self.context.event("sandbox_not_reset", sandbox_id=slot.box.id, what=what, reason=one_line(error))

    def _now_idle(self, slot: Slot) -> None:
        slot.state, slot.since = "idle", time.monotonic()
        self.slots.serve()

    def _not_needed(self, slot: Slot) -> None:
        """A slot that was granted to somebody who has gone."""
        if slot.sandbox is None:
            self.slots.gone(slot)
        else:
            slot.state = "idle"
            self.slots.serve()

    def _discard(self, slot: Slot) -> asyncio.Task[None] | None:
        """Begin to stop a slot's sandbox, unless there is none (any more)."""
        if slot.sandbox is None or slot.state == "stopping" or slot not in self.slots.all:
            return None
        slot.state = "stopping"
        return self._spawn(self._stop(slot), cancel=False)

    async def _stop(self, slot: Slot) -> None:
        try:
            await slot.box.stop()
        finally:
            self.slots.gone(slot)

    # --- the caretaker

    async def _take_care(self) -> None:
        while True:
            self.slots.changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._tend()):
                    await self.slots.changed.wait()

    def _tend(self) -> float | None:
        """Stop what is idle for too long, start what is to be warm; seconds until there is more to do, if that is known."""
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
        """Start a sandbox that nobody has asked for yet. Failures are tried again, ever later, as long as there are any."""
        kind = slot.kind
        try:
            slot.sandbox = await self.provider.start_sandbox(kind.spec)
        except BaseException as error:
            delay_s = min(MOST_BACKOFF_S, BACKOFF_S * 2**kind.failures) * random.uniform(0.5, 1.5)
            kind.failures, kind.retry_at = min(kind.failures + 1, 16), time.monotonic() + delay_s
            self.counts["start_failures"] += 1
            log.warning("no warm sandbox could be started, the next try is in %.1f s: %s", delay_s, one_line(error))
            self.slots.gone(slot)
            if not isinstance(error, Exception):
                raise
        else:
            kind.failures = 0
            self._now_idle(slot)

    # --- what it tells, and what the provider does

    def metrics(self) -> dict[str, float]:
        """Counts since the start; how many sandboxes are in which state now; seconds of waits, starts and resets."""
        states = self.slots.states()
        now = {
            "in_use": states["lent"], "idle": states["idle"], "starting": states["starting"] + states["warming"],
            "resetting": states["resetting"], "stopping": states["stopping"], "waiting": len(self.slots.waiting),
        }  # fmt: skip
        times = (self.waits, self.starts, self.resets)
        named = {name: value for each in times for name, value in each.metrics().items()}
        return {
            name: float(value) for name, value in {**dict.fromkeys(COUNTED, 0), **self.counts, **now, **named}.items()
        }

    async def list(self) -> list[SandboxInfo]:
        """The provider's list."""
        return await self.provider.list()

    async def remove(self, sandbox_id: str) -> None:
        """Remove one, whoever started it."""
        await self.provider.remove(sandbox_id)

    async def attach(self, sandbox_id: str) -> Sandbox:
        """The provider's."""
        return await self.provider.attach(sandbox_id)

    async def snapshots(self) -> builtins.list[str]:
        """The provider's."""
        return await self.provider.snapshots()

    async def remove_snapshot(self, name: str) -> None:
        """The provider's."""
        await self.provider.remove_snapshot(name)

    async def prune(self) -> builtins.list[str]:
        """The provider's."""
        return await self.provider.prune()

    async def build_image(self, name: str | None = None, *, python: bool = False) -> str:
        """The provider's."""
        return await self.provider.build_image(name, python=python)
