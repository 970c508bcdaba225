"""The actor that makes episodes: sandboxes, scaffolds and rewards are on its node, and model calls go to the engines.

An episode is two calls, so that the run can hand its place to another one while it is scored: `act` returns when the
agent has ended, `finish` once it is scored. Trajectories come back as the store encodes them, with tokens,
log-probabilities and versions as arrays."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ale.config.capabilities import Requirements
from ale.config.episode import EpisodeConfig
from ale.errors import AleError
from ale.rollout.episode import Episodes, StageInfo
from ale.rollout.open_episodes import open_episodes
from ale.session.session import RecordedSession
from ale.session.tokenizer import ChatTokenizer, byte_tokenizer
from ale.specs.algorithm import RolloutRequest
from ale.specs.driver import DriverContext
from ale.store.encoding import encode
from ale_ray.actor_calls import answered
from ale_ray.actor_messages import EngineReport, PoolMetrics, RemoteChannel, RemoteHooks, Sampling
from ale_ray.call_batching import CallReceiver
from ale_ray.routed_engine import EngineTable, RoutedEngine
from ale_ray.run_actor import RunActor

ARRIVES_S, LOOK_S = 10.0, 0.01
"""How long a call that was made before may take to arrive, and how often it is looked for."""


@runtime_checkable
class Closable(Protocol):
    """What starts of rollouts share may have something to close."""

    async def close(self) -> None:
        """Close it."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a worker is made from."""

    config: EpisodeConfig
    context: DriverContext
    """Without a channel."""
    redact: Callable[[str], str]
    folder: Path
    """The run's working folder, to which its paths are relative."""
    hooks: Collection[str]
    """The hooks that an observer of the run has."""


@dataclass(frozen=True, slots=True)
class EncodedTrajectory:
    """A trajectory, as `ale.store.encoding.encode` makes it."""

    text: str
    arrays: bytes


@dataclass(frozen=True, slots=True)
class AgentEnded:
    """The agent has ended, and the episode waits to be scored."""


@dataclass(eq=False)
class RunningEpisode:
    """An episode that is being made."""

    task: asyncio.Task[Any]
    acted: asyncio.Event = field(default_factory=asyncio.Event)
    """The agent has ended."""
    may_score: asyncio.Event = field(default_factory=asyncio.Event)


class RolloutWorker(RunActor):
    """Makes episodes and sends their trajectories to the run."""

    def __init__(self) -> None:
        super().__init__()
        self._callee = CallReceiver(self, self._outbox)
        self._running: dict[str, RunningEpisode] = {}
        self._dropped: deque[str] = deque(maxlen=1024)
        """Episodes that were given up before they arrived."""
        self._over: deque[str] = deque(maxlen=1024)
        """Episodes that have ended; the run may not have heard of it yet."""
        self._names: dict[asyncio.Task[Any], str] = {}
        self._shared: dict[Any, Any] = {}
        """What the starts of rollouts share (`Start.move`)."""

    async def begin(self, spec: WorkerSpec) -> tuple[str, int]:
        """Start the drivers; returns the node's id, and the process's."""
        import ray

        self._engine = RoutedEngine(lambda name, works: self._outbox.put(EngineReport(name, works)))
        self._channel = RemoteChannel(self._outbox, spec.redact)
        context, hooks = replace(spec.context, channel=self._channel), RemoteHooks(self._outbox, spec.hooks)
        required = Requirements(spec.config)
        opened = await open_episodes(self._stack, required, context, hooks, self._engine)
        self._pools = opened.pools
        self._episodes: Episodes = replace(opened.episodes, scoring=self._scoring)
        opened.episodes.sessions.sampling = self._sampling
        return ray.get_runtime_context().get_node_id(), os.getpid()

    @answered
    async def use_model(self, folder: Path | None) -> None:
        """Use the tokenizer of a model's folder."""
        tokenizer = byte_tokenizer() if folder is None else await asyncio.to_thread(ChatTokenizer.load, folder)
        self._episodes.sessions.tokenizer = tokenizer

    async def use_engines(self, table: EngineTable) -> None:
        self._engine.update(table)

    @answered
    async def expect(self, requests: Sequence[RolloutRequest], stage: StageInfo) -> None:
        self._episodes.expect([self._move(request) for request in requests], stage)

    async def exchange(self, pickled: bytes) -> list[Any]:
        return await self._callee.exchange(pickled)

    async def act(self, name: str, request: RolloutRequest, stage: StageInfo) -> EncodedTrajectory | AgentEnded | None:
        """Begin an episode; returns once its agent has ended, or the trajectory if the episode has, or None if it was
        given up."""
        if name in self._dropped:
            return None
        running = RunningEpisode(asyncio.ensure_future(self._episodes.run(self._move(request), stage)))
        self._running[name], self._names[running.task] = running, name
        acted = asyncio.ensure_future(running.acted.wait())
        try:
            await asyncio.wait([running.task, acted], return_when=asyncio.FIRST_COMPLETED)
        finally:
            acted.cancel()
        return await self._result(name, running) if running.task.done() else AgentEnded()

    async def finish(self, name: str) -> EncodedTrajectory | None:
        """Score an episode whose agent has ended, and return it; None if it was given up."""
        running = self._running.get(name)
        if running is None:
            return None
        running.may_score.set()
        return await self._result(name, running)

    @answered
    async def end(self, name: str, error: AleError) -> EncodedTrajectory | None:
        """End an episode with a failure, and return what there is of it; None if it has ended just before."""
        for _ in range(round(ARRIVES_S / LOOK_S)):  # it overtakes calls that go through the `CallBatcher`
            if name in self._running or name in self._over:
                break
            await asyncio.sleep(LOOK_S)
        running = self._running.get(name)
        if running is None:
            self._dropped.append(name)
            return None
        await asyncio.sleep(0)  # a task that is cancelled before it begins has no trajectory
        if not running.task.done():
            self._episodes.ended[running.task] = error
            running.task.cancel()
        try:
            return await self._result(name, running)
        finally:
            self._episodes.ended.pop(running.task, None)  # it may have ended, or not begun

    async def drop(self, name: str) -> None:
        """End an episode that the run has given up."""
        running = self._running.get(name)
        if running is None:
            if name not in self._over:
                self._dropped.append(name)
            return
        running.task.cancel()
        await asyncio.wait([running.task])
        self._forget(name)

    async def ping(self) -> None:
        """Answer."""

    async def end_work(self) -> None:
        """End all episodes, and have closed what their starts share."""
        running = [each.task for each in self._running.values()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        for shared in self._shared.values():
            if isinstance(shared, Closable):
                self._stack.push_async_callback(shared.close)

    def _move(self, request: RolloutRequest) -> RolloutRequest:
        start = request.start
        return request if start is None else replace(request, start=start.move(self._shared, self._channel))

    async def _result(self, name: str, running: RunningEpisode) -> EncodedTrajectory | None:
        try:
            trajectory = await asyncio.shield(running.task)
        except asyncio.CancelledError:
            if running.task.cancelled():
                return None
            raise
        finally:
            self._forget(name)
        if self._pools:
            self._outbox.put(PoolMetrics({pool: each.metrics() for pool, each in self._pools.items()}))
        return EncodedTrajectory(*encode(trajectory))

    def _forget(self, name: str) -> None:
        if (running := self._running.pop(name, None)) is not None:
            self._names.pop(running.task, None)
            self._over.append(name)

    @asynccontextmanager
    async def _scoring(self) -> AsyncIterator[None]:
        """Wait until the run lets this episode be scored."""
        task = asyncio.current_task()
        running = None if task is None else self._running.get(self._names.get(task, ""))
        if running is not None:
            running.acted.set()
            await running.may_score.wait()
        yield

    @contextmanager
    def _sampling(self, session: RecordedSession) -> Iterator[None]:
        """Tell the run that a request of an episode is at an engine."""
        name = self._names.get(session.opened_by) if session.opened_by is not None else None
        if name is None:
            yield
            return
        self._outbox.put(Sampling(name, True))
        try:
            yield
        finally:
            self._outbox.put(Sampling(name, False))
