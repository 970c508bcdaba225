"""The rollout workers: which of them makes an episode, and what happens when one dies.

An event `worker_states` says which state each was in and when: `busy`, `idle`, or one in which it gets no episodes. It
has the form of the engines' (`ale_engines.pool.state_log`), and is emitted when they report theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from ale.errors import EngineError
from ale.registry.validation import one_line_error
from ale_engines.pool.admission import Admission
from ale_engines.pool.routing import Target
from ale_engines.pool.state_log import Key, StateLog
from ale_ray.actor_calls import ActorLost, ActorSilent, ask, cancel
from ale_ray.actor_lifecycle import end_actor, look_at, share, start_actor
from ale_ray.actor_messages import PoolMetrics, Sampling
from ale_ray.call_batching import CallBatcher
from ale_ray.ray_connection import describe_gpus
from ale_ray.rollout_worker import RolloutWorker, WorkerSpec
from ale_ray.routed_engine import EngineTable
from ale_ray.timer_coalescing import wait_for_tick

RESTARTS = 3
"""A worker that was started so many times in a row, without finishing an episode, is given up."""
TABLE_S = 60.0
"""A worker that does not take a table of the engines within this time has stopped for good."""
LOOK_S = 5.0
"""Seconds between two looks whether a worker lives."""
DEAD, SILENT = "has died", "does not answer any more"
"""What was found of a worker that is started again."""
STATES_EVENT = "worker_states"
"""The kind of the event."""
CLOSE_S = 30.0
MEANS = ("_p50", "_p95", "_max")
"""Ends of the names of metrics whose sum says nothing."""

Model = tuple[Path | None]


class WorkerHandle(Target):
    """A worker as the run sees it: its actor, its state, and its places for episodes."""

    def __init__(self, name: str, slots: int) -> None:
        super().__init__(name, slots)
        self.actor: Any = None
        self.line: CallBatcher | None = None
        """For the calls that each episode needs."""
        self.node, self.pid = "", 0
        self.state = "starting"
        self.model: Model | None = None
        self.table: Any = None
        """What it was given when it started."""
        self.listeners: dict[str, Any] = {}
        """What gets the messages about requests at engines, by the episode's name."""
        self.pools: dict[str, dict[str, float]] = {}
        self.busy = False
        """Whether it had episodes when the states were looked at last."""
        self.failures = 0
        self.listening: asyncio.Task[None] | None = None
        self.looking: asyncio.Task[None] | None = None
        self.reviving: asyncio.Task[None] | None = None


class RolloutWorkers:
    """Starts the workers, gives them episodes, and starts one again that has died.

    `receive` gets the messages that concern the whole run, `note` gets sentences for the user, `event` is
    `Channel.event`, and `changed` is called after each change of a worker's state."""

    def __init__(
        self,
        spec: WorkerSpec,
        options: dict[str, Any],
        *,
        slots: int,
        start_s: float,
        receive: Callable[[Any], None],
        note: Callable[[str], None],
        event: Callable[..., None],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._spec, self._options, self._slots, self._start_s = cloudpickle.dumps(spec), options, slots, start_s
        self._receive, self._note, self._event, self._changed = receive, note, event, changed
        self._admission = Admission(self._find_refusal)
        self._states = StateLog(self._read_states)
        self._numbers, self._names = count(), count()
        self._model: Model | None = None
        self._table: Any = None
        """The newest table of the engines, shared: the handles of their actors are large."""
        self._last_fault = ""
        self._closed = False

    def __iter__(self) -> Iterator[Any]:
        return iter(self._admission.router.targets)

    def __len__(self) -> int:
        return len(self._admission.router.targets)

    async def add(self, number: int) -> None:
        """Start workers, all at once. Raises `AleError` if one does not start: then none is added."""
        new = [WorkerHandle(f"worker {next(self._names)}", self._slots) for _ in range(number)]
        targets = self._admission.router.targets
        targets += new
        try:
            results = await asyncio.gather(*(self._start(worker) for worker in new), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
            for worker in new:
                await self._serve(worker)
        except BaseException:
            for worker in new:
                targets.remove(worker)
            await asyncio.gather(*(cancel(worker.reviving) for worker in new))
            await asyncio.gather(*(self._end(worker) for worker in new))
            raise

    async def remove(self) -> str:
        """End a worker, once its episodes are done: one that was given up, else that which was added last. Returns its
        name."""
        targets = self._admission.router.targets
        worker = next((each for each in self if each.state == "failed"), targets[-1])
        assert isinstance(worker, WorkerHandle)
        self._change(worker, "leaving")
        await cancel(worker.reviving)
        while worker.active:
            await self._admission.wait_for_change()
        targets.remove(worker)
        self._states.look()
        self._admission.router.forget(worker)
        await self._end(worker)
        return worker.name

    async def _start(self, worker: WorkerHandle) -> None:
        worker.model, worker.table, worker.pools = None, None, {}
        label = f"{worker.name}/{next(self._numbers)}"  # an actor that dies keeps its name for a moment
        worker.actor = start_actor(RolloutWorker, label, self._options)
        worker.line = CallBatcher(worker.name, worker.actor)
        worker.listening = asyncio.create_task(self._listen(worker, worker.actor, worker.line))
        worker.node, worker.pid = await self._ask(worker, worker.actor.start.remote(self._spec))
        worker.looking = asyncio.create_task(self._look(worker, worker.actor, worker.line))

    async def _serve(self, worker: WorkerHandle) -> None:
        """Give a worker that has started what changed meanwhile, until there is nothing more; then it gets episodes."""
        while worker.model is not self._model or worker.table is not self._table:
            model, table = self._model, self._table
            if model is not None and model is not worker.model:
                await self._ask(worker, worker.actor.use_model.remote(*model))
            if table is not None and table is not worker.table:
                await self._ask(worker, worker.actor.use_engines.remote(table))
            worker.model, worker.table = model, table
        self._change(worker, "serving")
        self._admission.serve()

    async def _ask(self, worker: WorkerHandle, reference: Any) -> Any:
        try:
            return await ask(worker.name, reference, self._start_s)
        except TimeoutError:
            raise EngineError(f"{worker.name} did not start within {self._start_s:g} s (cluster.start_s).") from None

    async def use_model(self, folder: Path | None) -> None:
        """Have all workers use the tokenizer of a model's folder."""
        self._model = (folder,)
        await self._call_each(lambda actor: actor.use_model.remote(folder), self._start_s)

    async def use_engines(self, table: EngineTable) -> None:
        """Give all workers a table of the engines; those that serve have it when this returns."""
        self._table = shared = share(table)
        await self._call_each(lambda actor: actor.use_engines.remote(shared), TABLE_S)

    async def _call_each(self, call: Callable[[Any], Any], limit_s: float) -> None:
        async def call_one(worker: WorkerHandle) -> None:
            actor = worker.actor
            try:
                await ask(worker.name, call(actor), limit_s)
            except ActorLost:
                self.suspect(worker, actor)
            except TimeoutError:
                self.suspect(worker, actor, SILENT)

        # One that leaves still has episodes, which need engines that are there.
        having = [worker for worker in self if worker.serving or (worker.state == "leaving" and worker.actor)]
        await asyncio.gather(*(call_one(worker) for worker in having))

    # --- episodes

    def home(self, group: str) -> WorkerHandle | None:
        """Return the worker for a group; None while none has room."""
        worker = self._admission.router.choose(group)
        assert worker is None or isinstance(worker, WorkerHandle)
        return worker

    async def enter(self, group: str) -> WorkerHandle:
        """Wait for a worker that serves, and take a place there; `leave` gives it back. It may have died before this
        returns: then it does not serve. Raises `EngineError` if none is left."""
        worker = await self._admission.enter(self._admission.take_number(), group, 0)
        assert isinstance(worker, WorkerHandle)
        self._note_use(worker)
        return worker

    def leave(self, worker: WorkerHandle) -> None:
        """Give a place back."""
        self._admission.leave(worker)
        self._note_use(worker)

    def _note_use(self, worker: WorkerHandle) -> None:
        if worker.busy != bool(worker.active):
            worker.busy = not worker.busy
            self._states.look()

    def finish(self, worker: WorkerHandle) -> None:
        """Record that an episode ended well there."""
        worker.failures = 0

    def _find_refusal(self) -> EngineError | None:
        if self._closed:
            return EngineError("The rollout workers are closed.")
        if any(worker.state != "failed" for worker in self):
            return None
        return EngineError(f"No rollout worker is left. {self._last_fault}")

    # --- states

    def _change(self, worker: WorkerHandle, state: str) -> None:
        worker.serving, worker.state = state == "serving", state
        self._states.look()
        self._changed()

    def _read_states(self) -> dict[Key, str]:
        """Return the state of each worker that has been on a node."""
        found = {}
        for worker in self:
            if worker.node:
                state = ("busy" if worker.active else "idle") if worker.serving else worker.state
                found[worker.name, f"{worker.node[:8]} · {describe_gpus(0)}"] = state
        return found

    def report_states(self) -> None:
        """Emit the event; the next one goes on from here."""
        if found := self._states.take():
            self._event(STATES_EVENT, workers=found)

    # --- faults

    def suspect(self, worker: WorkerHandle, actor: Any, found: str = DEAD) -> None:
        """Start a worker again whose actor has died, or does not do its work; `found` says so to the user."""
        if worker.state != "serving" or worker.actor is not actor or self._closed:
            return
        self._change(worker, "lost")
        if worker.line is not None:
            worker.line.fail(ActorLost(f"{worker.name} {found}."))
        self._admission.router.forget(worker)
        worker.reviving = asyncio.create_task(self._revive(worker, found))

    async def _revive(self, worker: WorkerHandle, found: str) -> None:
        self._note(f"{worker.name} {found} and is started again; its episodes begin anew.")
        while worker.failures < RESTARTS:
            worker.failures += 1
            await self._end(worker, ask_it=False)
            try:
                await self._start(worker)
                await self._serve(worker)
            except Exception as error:  # no other task restarts this worker
                self._last_fault = f"{one_line_error(error)}."
                continue
            return
        await self._end(worker, ask_it=False)
        self._change(worker, "failed")
        self._note(f"{worker.name} is given up: it was started {RESTARTS} times in a row in vain.")
        self._admission.serve()

    async def _listen(self, worker: WorkerHandle, actor: Any, line: CallBatcher) -> None:
        def receive(message: Any) -> None:
            if isinstance(message, Sampling):
                if (listener := worker.listeners.get(message.episode)) is not None:
                    listener.receive(message)
            elif isinstance(message, PoolMetrics):
                worker.pools = message.pools
            else:
                self._receive(message)

        try:
            await line.listen(receive)
        except Exception:  # it died, or cannot be asked
            self.suspect(worker, actor)

    async def _look(self, worker: WorkerHandle, actor: Any, line: CallBatcher) -> None:
        """Find out that a worker has stopped for good: what it makes may take as long as it likes. One from which
        something came since the last look is not asked."""
        heard = -1
        try:
            while True:
                if heard == line.heard:
                    await look_at(worker.name, actor, actor.ping.remote())
                heard = line.heard
                await wait_for_tick(LOOK_S)
        except ActorSilent:
            self.suspect(worker, actor, SILENT)
        except Exception:  # it died, or cannot be asked
            self.suspect(worker, actor)

    async def close(self) -> None:
        """End all workers."""
        try:
            if not self._closed:
                self.report_states()
        finally:  # also if the report fails
            self._closed = True
            self._admission.serve()
            await asyncio.gather(*(cancel(worker.reviving) for worker in self))
            await asyncio.gather(*(self._end(worker) for worker in self))

    async def _end(self, worker: WorkerHandle, *, ask_it: bool = True) -> None:
        worker.serving = False
        actor, worker.actor = worker.actor, None
        listening, worker.listening = worker.listening, None
        looking, worker.looking = worker.looking, None
        if looking is not None:
            looking.cancel()
        try:
            await end_actor(worker.name, actor, listening, CLOSE_S if ask_it else None)
        finally:
            if worker.line is not None:
                worker.line.fail(ActorLost(f"{worker.name} was closed."))


class RemotePool:
    """The sandbox pools of one plugin on all workers, as `OpenEpisodes.pools` has them."""

    def __init__(self, workers: RolloutWorkers, name: str) -> None:
        self._workers, self._name = workers, name

    def metrics(self) -> dict[str, float]:
        """Return each metric in sum; of shares and times, the mean."""
        found = [worker.pools[self._name] for worker in self._workers if self._name in worker.pools]
        names = dict.fromkeys(name for metrics in found for name in metrics)
        sums = {name: sum(metrics.get(name, 0.0) for metrics in found) for name in names}
        return {name: value / len(found) if name.endswith(MEANS) else value for name, value in sums.items()}
