"""The pool under any order of requests, ends, cancellations and faults: what must hold after every step."""

from __future__ import annotations

import asyncio

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ale.config.pool import PoolConfig
from ale.errors import SandboxError
from ale.rollout.sandbox_pool.lease import LeasedSandbox
from ale.rollout.sandbox_pool.pool import SandboxPool
from ale.specs.sandbox import SandboxSpec
from ale_testing.fake_sandboxes import MemoryProvider, MemorySandbox

MOST, AT_ONCE = 3, 2
Kinds = st.sampled_from(["one", "two"])
Steps = st.integers(0, 8)


class Pool(RuleBasedStateMachine):
    """Three sandboxes of two kinds, two of which may start at once."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.provider = MemoryProvider()
        self.pool = SandboxPool(
            self.provider, PoolConfig(max_sandboxes=MOST, starts_at_once=AT_ONCE, max_uses=4, warm=1)
        )
        self.requests: list[asyncio.Task[LeasedSandbox]] = []
        self.lent: list[LeasedSandbox] = []
        self.number = 0
        self.run(self.pool.start())

    def run(self, work: object = None, steps: int = 0) -> None:
        """Run a coroutine, then let the loop go round some times."""

        async def go() -> None:
            if work is not None:
                await work  # type: ignore[misc]
            for _ in range(steps):
                await asyncio.sleep(0)

        self.loop.run_until_complete(go())
        for task in [task for task in self.requests if task.done()]:
            self.requests.remove(task)
            if not task.cancelled() and task.exception() is None:
                self.lent.append(task.result())
            elif not task.cancelled():
                assert isinstance(task.exception(), SandboxError), task.exception()

    @rule(kind=Kinds, steps=Steps)
    def ask(self, kind: str, steps: int) -> None:
        self.number += 1
        spec = SandboxSpec(image=kind, env={"N": str(self.number)}, files={"n": str(self.number).encode()})
        self.requests.append(self.loop.create_task(self.pool.start_sandbox(spec)))
        self.run(steps=steps)

    @rule(which=st.integers(0, 5), steps=Steps)
    def cancel(self, which: int, steps: int) -> None:
        if which < len(self.requests):
            self.requests[which].cancel()
            self.run(steps=steps)

    @rule(which=st.integers(0, 5), steps=Steps)
    def give_back(self, which: int, steps: int) -> None:
        if which < len(self.lent):
            self.run(self.lent.pop(which).stop(), steps)

    @rule(which=st.integers(0, 5))
    def die(self, which: int) -> None:
        alive = sorted(self.provider.alive, key=lambda box: box.id)
        if which < len(alive):
            alive[which].dead = True

    @rule(what=st.sampled_from(["files", "processes"]))
    def be_unclean(self, what: str) -> None:
        self.provider.unclean = [what]

    @rule()
    def fail_to_start(self) -> None:
        self.provider.failures = [SandboxError("no more")]

    @rule(steps=Steps)
    def hang(self, steps: int) -> None:
        self.provider.gate.clear()
        self.run(steps=steps)

    @rule(steps=Steps)
    def go_on(self, steps: int) -> None:
        self.provider.gate.set()
        self.run(steps=steps)

    @invariant()
    def there_are_never_too_many(self) -> None:
        assert len(self.pool.slots.all) <= MOST
        assert self.provider.most <= MOST
        assert self.provider.most_starting <= AT_ONCE

    @invariant()
    def every_sandbox_has_its_place(self) -> None:
        held = {slot.sandbox for slot in self.pool.slots.all if slot.sandbox is not None}
        starting = sum(1 for _ in self.pool.slots.within("starting", "warming"))
        assert len(self.provider.alive - held) <= starting, "started, and not handed over yet"

    @invariant()
    def nobody_shares_a_sandbox_or_gets_a_used_one(self) -> None:
        boxes = [box.inner for box in self.lent]
        assert len(set(boxes)) == len(boxes)
        for lease in self.lent:
            assert isinstance(lease.inner, MemorySandbox)
            if lease.inner in self.provider.alive:
                number = lease.spec.env["N"]
                assert lease.inner.spec.env == {"N": number}
                assert lease.inner.files == {"n": number.encode()}

    @invariant()
    def nobody_waits_in_vain(self) -> None:
        self.run(steps=10)
        if self.requests and self.provider.gate.is_set():
            busy = sum(1 for _ in self.pool.slots.within("lent"))
            assert busy == MOST, f"{len(self.requests)} wait, and {self.pool.metrics()}"

    def teardown(self) -> None:
        self.provider.gate.set()
        try:
            self.run(self.pool.close(), 10)
            assert self.provider.alive == set()
            assert self.pool.slots.all == set()
            assert self.requests == [], "whoever waited was told"
            assert asyncio.all_tasks(self.loop) == set()
        finally:
            self.loop.close()


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
