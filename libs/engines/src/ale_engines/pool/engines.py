"""`Engines`: several replicas of a model behind the contract of one engine.

1. `generate` waits for a slot (`admission.py`) of the replica that the router chose (`routing.py`). A generation that
   its replica breaks off goes on elsewhere, from the prompt and what has been sampled (`dispatch.py`).
2. A task for each replica checks it every few seconds, and at once when it broke a generation off; a replica that has
   failed is started again, and serves only after it has loaded the current weights (`health.py`).
3. `load_weights` leaves the other replicas sampling while one loads (`weight_updates.py`).
4. Some replicas, or all, may sleep for a while and lend their memory (`sleep.py`).
5. If no replica is left, all calls raise an `EngineError` that says why.
6. Events say which state each replica was in and when (`state_log.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

from ale.errors import EngineError
from ale.specs.driver import Channel, Lifecycle
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine, PolicyVersion, Tokenizer
from ale_engines.pool.continuation import NOTHING
from ale_engines.pool.dispatch import Progress, dispatch
from ale_engines.pool.health import watch
from ale_engines.pool.member import Member, ReplicaStatus, State
from ale_engines.pool.members import Members
from ale_engines.pool.metrics import collect_metrics
from ale_engines.pool.replica import Replica
from ale_engines.pool.sleep import end_generations, finish_all, put_to_sleep, wake_up
from ale_engines.pool.state_log import STATES_EVENT, StateLog, read_states
from ale_engines.pool.weight_updates import update_weights


class Engines(Lifecycle, InferenceEngine):
    """A pool of replicas as one engine. It owns its replicas: it starts and closes them."""

    def __init__(
        self, replicas: Sequence[Replica], note: Callable[[str], None], event: Callable[..., None] | None = None
    ) -> None:
        """`note` reports a sentence to the user: a replica is started again, serves again, or is given up. `event` is
        `Channel.event`."""
        if not replicas:
            raise ValueError("A pool of engines has at least one replica.")
        self._members = Members(replicas, note)
        self._admission = self._members.admission
        self._event = event or Channel().event
        self._states = StateLog(lambda: read_states(self._members))
        self.listeners.append(self._states.look)
        self._model: tuple[Path | None, Tokenizer] | None = None
        self._running: dict[int, Progress] = {}
        self._updating = asyncio.Lock()
        self._changes: set[asyncio.Task[None]] = set()

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
        serving = [member.version for member in self._members if member.ready]
        current = self._members.policy
        return min(serving, default=current.version if current else 0)

    def metrics(self) -> dict[str, float]:
        return collect_metrics(self._members)

    # --- what a process that dispatches to the same replicas knows and reports

    @property
    def listeners(self) -> list[Callable[[], None]]:
        """What `replica_statuses` returns may have changed."""
        return self._members.listeners

    def replica_statuses(self) -> tuple[ReplicaStatus, ...]:
        """Return what others must know of the replicas to dispatch to them."""
        return tuple(member.status for member in self._members)

    def objection_to_lending(self, count: int) -> str:
        """Return why the last `count` replicas, which have started, cannot lend their memory while they sleep
        (`rl.multiplex`), as a sentence; an empty one if they can."""
        keeping = [replica.name for replica in self.replicas[-count:] if not replica.frees_memory]
        if not keeping:
            return ""
        return (
            f"rl.multiplex is {count}, but {' and '.join(keeping)} cannot give a GPU's memory back, which the trainer "
            "needs while it trains. Take an engine that frees its memory when it sleeps, such as vllm, or leave "
            "rl.multiplex out."
        )

    def suspect(self, name: str) -> None:
        """Have a replica checked, because it broke off a generation that somebody else had sent to it. One that leaves
        service, or has left, did so by intention."""
        self._members.counts["interruptions"] += 1
        member = self._members.find(name)
        if member is not None and not member.leaving:
            member.broke_off()

    def finished(self, name: str) -> None:
        """Record that a replica finished a generation that somebody else had sent to it: one that never does so is
        given up some day."""
        if (member := self._members.find(name)) is not None:
            member.finish()

    # --- lifetime

    async def start(self) -> None:
        """Start the replicas, all at once."""
        await _run_together(replica.start() for replica in self.replicas)
        for member in self._members:
            watch(self._members, member)

    async def close(self) -> None:
        """End the replicas; generations under way and requests that wait raise `EngineError`."""
        try:
            if not self._members.closed:
                self._report_states()
        finally:  # also if the report fails
            self._members.close()
            await _cancel(self._changes)
            await _cancel_watches(self._members)
            await finish_all(replica.close() for replica in self.replicas)

    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        """All replicas load it at once, but those that were given up."""
        async with self._updating:
            self._model, self._members.policy = (folder, tokenizer), None
            there = [member for member in self._members if member.state is not State.FAILED]
            if not there and (refusal := self._members.find_refusal()) is not None:
                raise refusal
            await _run_together(self._load_model(member, folder, tokenizer) for member in there)

    async def _load_model(self, member: Member, folder: Path | None, tokenizer: Tokenizer) -> None:
        async with member.lock:
            if member.state is State.LEAVING:  # it has left while this waited
                return
            member.change(State.EMPTY)
            await member.load_model(folder, tokenizer)
            member.change(State.SERVING)
            watch(self._members, member)

    async def join(self, replica: Replica) -> None:
        """Add a replica that has been started. It loads the model and the current weights, then it serves; the pool
        closes it. Raises `EngineError` if it cannot load them: then it is not added."""
        if self._model is None:
            raise EngineError("A replica can join a pool of engines only after load_model.")
        member = Member.of(replica)
        model: tuple[Path | None, Tokenizer] | None = None
        while model is not self._model:  # there may be another one meanwhile
            model = self._model
            await member.load_model(*model)
            while (policy := self._members.policy) is not None and policy is not member.policy:
                await member.load(policy)
        if self._members.closed:
            raise EngineError(f"The pool of engines was closed before {replica.name} could join.")
        member.change(State.SERVING)
        self._members.add(member)
        watch(self._members, member)

    async def leave(self, name: str) -> Replica:
        """Take a replica out and return it; its generations go on elsewhere. The caller closes it.

        Raises `EngineError` if no replica has that name, or if it is the only one."""
        member = self._find(name)
        self._require_another(member)
        try:
            await _cancel_watches([member])
            async with member.lock:
                await _cancel_watches([member])  # a load that was under way has begun another one
                self._require_another(member)
                idle = member.state in (State.ASLEEP, State.FAILED)
                member.change(State.LEAVING)
                if not idle:
                    await end_generations(self._members, member)
        except BaseException:
            member.suspect(State.LEAVING, State.LOST)
            member.watch = None
            watch(self._members, member)
            raise
        self._members.remove(member)
        return member.replica

    def _find(self, name: str) -> Member:
        if (member := self._members.find(name)) is None:
            raise EngineError(f"The pool of engines has no replica '{name}'.")
        return member

    def _require_another(self, member: Member) -> None:
        gone = State.LEAVING, State.FAILED  # but one that is `EMPTY` will serve: a model is being loaded
        if all(other is member or other.state in gone for other in self._members):
            raise EngineError(f"{member.name} is the last replica of the pool, so it cannot leave.")

    # --- requests

    async def generate(self, request: GenerateRequest) -> Generation:
        """Raises `EngineError` too if no replica is left."""
        return await dispatch(self._admission, request, self._members.counts, self._running)

    def sampled_so_far(self, request: GenerateRequest, after: int = 0) -> Generation:
        """Return what has been sampled, beyond `after` tokens, for a request that runs: the object that `generate`
        got."""
        found = self._running.get(id(request))
        return NOTHING if found is None else found.sampled_so_far(after)

    async def load_weights(self, policy: PolicyVersion) -> None:
        """Raises `EngineError` if no replica takes them; then they
        all have the weights that they had."""
        if policy.ticket.transport not in self.transports:
            raise EngineError(
                f"The engines take weights by {' or '.join(self.transports) or 'no transport'}; policy version "
                f"{policy.version} comes by '{policy.ticket.transport}'."
            )
        await self._complete(self._update(policy), "loaded weights")
        self._report_states()

    def _report_states(self) -> None:
        if found := self._states.take():
            self._event(STATES_EVENT, engines=found)

    async def _update(self, policy: PolicyVersion) -> None:
        async with self._updating:
            await update_weights(self._members, policy)

    async def _complete(self, change: Coroutine[Any, Any, None], what: str) -> None:
        """Run a change of the replicas to its end, even if its caller goes away: some would have made it and some not.
        Raises `EngineError` if the pool is closed meanwhile; `what` it did then."""
        task = asyncio.get_running_loop().create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._forget)
        await asyncio.wait([task])
        if task.cancelled():
            raise EngineError(f"The pool of engines was closed while it {what}.")
        task.result()

    def _forget(self, change: asyncio.Task[None]) -> None:
        self._changes.discard(change)
        if not change.cancelled():
            change.exception()  # its caller may have gone away

    # --- pause and sleep

    async def pause(self) -> None:
        """Stop sampling on all replicas; requests wait."""
        self._admission.open = False
        await self._ask_all(lambda replica: replica.pause())

    async def resume(self) -> None:
        """Go on."""
        await self._ask_all(lambda replica: replica.resume())
        self._admission.open = True
        self._admission.serve()

    async def sleep(self) -> None:
        """Put all replicas to sleep, as `shrink` does; requests wait, also those that were interrupted."""
        await self.shrink([member.name for member in self._members])

    async def wake(self) -> None:
        """Wake all replicas that sleep, as `expand` does."""
        await self.expand([member.name for member in self._members])

    async def shrink(self, names: Sequence[str]) -> None:
        """Put these replicas to sleep, so that their memory is free; their generations go on elsewhere, and wait if all
        replicas sleep. Until `expand`, they are neither checked nor started again, and get no weights.

        Raises `EngineError` if no replica has one of these names. Raises the first error of a replica that does not
        fall asleep, also after it was started again; that replica then serves, and the others sleep."""
        chosen = [self._find(name) for name in names]
        await self._complete(put_to_sleep(self._members, chosen), "put replicas to sleep")

    async def expand(self, names: Sequence[str]) -> None:
        """Wake these replicas; each serves once it has loaded the current weights. One that fails is started again.

        Raises `EngineError` if no replica has one of these names."""
        chosen = [self._find(name) for name in names]
        await self._complete(wake_up(self._members, chosen), "woke replicas")

    async def _ask_all(self, ask: Callable[[Replica], Coroutine[Any, Any, None]]) -> None:
        """Ask the replicas at once; one that fails is checked. One that is being started, or sleeps, needs no
        question."""

        async def ask_one(member: Member) -> None:
            try:
                await ask(member.replica)
            except EngineError:
                member.suspect()

        asked = (State.SERVING, State.LOADING, State.SUSPECT)
        await asyncio.gather(*(ask_one(member) for member in self._members if member.state in asked))


async def _run_together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines at once; if one fails, cancel the others and raise its error."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in work:
                group.create_task(each)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _cancel_watches(members: Iterable[Member]) -> None:
    await _cancel([member.watch for member in members if member.watch is not None])


async def _cancel(tasks: Collection[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
