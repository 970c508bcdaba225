"""`Engines`: several replicas of a model behind the contract of one engine.

1. `generate` waits for a slot (`admission.py`) of the replica that the router chose (`routing.py`). A generation that
   its replica breaks off goes on elsewhere, from the prompt and what has been sampled (`continuation.py`); none of its
   tokens is sampled by older weights than those before.
2. A task for each replica checks it every few seconds, and at once when it broke a generation off; a replica that has
   failed is started again, and serves only after it has loaded the current weights (`health.py`).
3. `load_weights` leaves the other replicas sampling while one loads (`weights.py`).
4. If no replica is left, all calls raise an `EngineError` that says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

from ale.errors import EngineError
from ale.specs.driver import Lifecycle
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine, PolicyVersion, Tokenizer
from ale_engines.continuation import NOTHING, finish_if_complete, join_parts, request_rest
from ale_engines.health import watch
from ale_engines.member import Member, State
from ale_engines.members import Members
from ale_engines.pool_metrics import collect_metrics
from ale_engines.replica import Interrupted, Replica
from ale_engines.weights import update_weights

INTERRUPTIONS = 4
"""A generation that was broken off so many times fails: it may be what ends the replicas."""


class Engines(Lifecycle, InferenceEngine):
    """See the module. The pool owns its replicas: it starts and closes them."""

    def __init__(self, replicas: Sequence[Replica], note: Callable[[str], None]) -> None:
        """`note` reports a sentence to the user: a replica is started again, serves again, or is given up."""
        if not replicas:
            raise ValueError("A pool of engines has at least one replica.")
        self._members = Members(replicas, note)
        self._admission = self._members.admission
        self._model: tuple[Path | None, Tokenizer] | None = None
        self._updating = asyncio.Lock()
        self._updates: set[asyncio.Task[None]] = set()
        self._paused = False

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """The replicas, in the order in which they joined."""
        return tuple(member.replica for member in self._members)

    @property
    def transports(self) -> tuple[str, ...]:  # type: ignore[override]  # the replicas' may change when they start
        """The transports that all replicas take, in the order of the first one."""
        first, *others = (replica.transports for replica in self.replicas)
        return tuple(name for name in first if all(name in each for each in others))

    @property
    def max_context(self) -> int:
        """The most tokens of a request that every replica takes."""
        return min(replica.max_context for replica in self.replicas)

    @property
    def version(self) -> int:
        """The oldest version that serves."""
        serving = [member.version for member in self._members if member.state in (State.SERVING, State.LOADING)]
        current = self._members.policy
        return min(serving, default=current.version if current else 0)

    def metrics(self) -> dict[str, float]:
        """See `pool_metrics.py`."""
        return collect_metrics(self._members)

    # --- lifetime

    async def start(self) -> None:
        """Start the replicas, all at once."""
        await _run_together(replica.start() for replica in self.replicas)
        for member in self._members:
            watch(self._members, member)

    async def close(self) -> None:
        """End the replicas; generations under way and requests that wait raise `EngineError`."""
        self._members.close()
        await _cancel([*self._updates, *(member.watch for member in self._members if member.watch is not None)])
        results = await asyncio.gather(*(replica.close() for replica in self.replicas), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        """See `InferenceEngine.load_model`. All replicas load it at once."""
        self._model = folder, tokenizer
        async with self._updating:
            await _run_together(self._load_model(member, folder, tokenizer) for member in self._members)

    async def _load_model(self, member: Member, folder: Path | None, tokenizer: Tokenizer) -> None:
        async with member.lock:
            self._members.policy = None
            self._members.change(member, State.EMPTY)
            await member.load_model(folder, tokenizer)
            self._members.change(member, State.SERVING)
            watch(self._members, member)

    async def join(self, replica: Replica) -> None:
        """Add a replica that has been started. It loads the model and the current weights, then it serves; the pool
        closes it. Raises `EngineError` if it cannot load them: then it is not added."""
        if self._model is None:
            raise EngineError("A replica can join a pool of engines only after load_model.")
        member = Member.of(replica)
        await member.load_model(*self._model)
        while (policy := self._members.policy) is not None and policy is not member.policy:
            await member.load(policy)
        if self._members.closed:
            raise EngineError(f"The pool of engines was closed before {replica.name} could join.")
        member.change(State.SERVING)
        self._members.add(member)
        watch(self._members, member)

    async def leave(self, name: str) -> Replica:
        """Take a replica out and return it; its generations go on elsewhere. The caller closes it.

        Raises `EngineError` if there is none of that name, or no other one."""
        member = next((member for member in self._members if member.name == name), None)
        if member is None:
            raise EngineError(f"The pool of engines has no replica '{name}'.")
        if not any(other.living for other in self._members if other is not member):
            raise EngineError(f"{name} is the last replica of the pool, so it cannot leave.")
        if member.watch is not None:
            await _cancel([member.watch])
        async with member.lock:
            self._members.change(member, State.LEAVING)
            try:
                await member.replica.interrupt()
                while member.active:
                    await self._admission.wait_for_change()
            except BaseException:
                member.suspect(State.LEAVING)
                self._admission.serve()
                watch(self._members, member)
                raise
        self._members.remove(member)
        return member.replica

    # --- requests

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `InferenceEngine.generate`. Raises `EngineError` too if no replica is left."""
        number, done, interruptions = self._admission.take_number(), NOTHING, 0
        while True:
            member = await self._admission.enter(number, request.session, max(done.versions, default=0))
            assert isinstance(member, Member)
            try:
                if member.state not in (State.SERVING, State.LOADING):
                    continue  # its state changed after it was chosen
                further = await member.replica.generate(request_rest(request, done))
                member.finish()
                return join_parts(done, further)
            except Interrupted as error:
                done = join_parts(done, error.partial)
                self._members.counts["interruptions"] += 1
                if member.state is not State.LEAVING:
                    interruptions += 1
                    member.interruptions += 1
                    member.suspect()
                if (complete := finish_if_complete(request, done, member.replica.max_context)) is not None:
                    return complete
                if interruptions == INTERRUPTIONS:
                    raise EngineError(
                        f"A generation was broken off {interruptions} times, the last time: {error}"
                    ) from error
            finally:
                self._admission.leave(member)

    async def load_weights(self, policy: PolicyVersion) -> None:
        """See `InferenceEngine.load_weights` and `weights.py`. Raises `EngineError` if no replica takes them; then they
        all have the weights that they had."""
        if policy.ticket.transport not in self.transports:
            raise EngineError(
                f"The engines take weights by {' or '.join(self.transports) or 'no transport'}; policy version "
                f"{policy.version} comes by '{policy.ticket.transport}'."
            )
        # A caller that goes away must not leave some replicas with new weights and some with old ones.
        update = asyncio.get_running_loop().create_task(self._update(policy))
        self._updates.add(update)
        update.add_done_callback(self._forget_update)
        await asyncio.wait([update])
        if update.cancelled():
            raise EngineError("The pool of engines was closed while it loaded weights.")
        update.result()

    def _forget_update(self, update: asyncio.Task[None]) -> None:
        self._updates.discard(update)
        if not update.cancelled():
            update.exception()  # its caller may have gone away

    async def _update(self, policy: PolicyVersion) -> None:
        async with self._updating:
            await update_weights(self._members, policy)

    # --- pause and sleep

    async def pause(self) -> None:
        """Stop sampling on all replicas; requests wait."""
        self._paused = True
        self._open_or_shut()
        await self._ask_all(lambda replica: replica.pause())

    async def resume(self) -> None:
        """Go on."""
        self._paused = False
        await self._ask_all(lambda replica: replica.resume())
        self._open_or_shut()

    async def sleep(self) -> None:
        """Free the memory of all replicas; requests wait, and no replica is checked or started again until `wake`.
        Raises the first error of a replica."""
        self._members.awake.clear()
        self._open_or_shut()
        await _run_together(self._sleep(member) for member in self._members)

    async def _sleep(self, member: Member) -> None:
        async with member.lock:  # a restart under way ends first
            if member.living:
                await member.replica.sleep()

    async def wake(self) -> None:
        """Take the memory again."""
        await self._ask_all(lambda replica: replica.wake())
        self._members.awake.set()
        self._open_or_shut()

    def _open_or_shut(self) -> None:
        self._admission.open = self._members.awake.is_set() and not self._paused
        self._admission.serve()

    async def _ask_all(self, ask: Callable[[Replica], Coroutine[Any, Any, None]]) -> None:
        """Ask the replicas at once; one that fails is checked. One that is being started needs no question."""

        async def ask_one(member: Member) -> None:
            try:
                await ask(member.replica)
            except EngineError:
                member.suspect()
                self._admission.serve()

        living = [member for member in self._members if member.living and member.state is not State.LOST]
        await asyncio.gather(*map(ask_one, living))


async def _run_together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines at once; if one fails, cancel the others and raise its error."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in work:
                group.create_task(each)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
