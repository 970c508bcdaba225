"""Episodes that workers on other nodes make, as the run sees them.

1. All rollouts of a group go to one worker, because they share states of experts, unless that worker has more than its
   share.
2. A worker that dies is started again. Its episodes begin anew on another worker with the same seeds, because nothing
   of them has reached the run.
3. Rollouts whose start cannot be pickled (`Start.portable`) are made in the run's process.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from ale.errors import AleError, SandboxError
from ale.rollout.episode import Episodes, StageInfo
from ale.specs.algorithm import RolloutRequest
from ale.store.encoding import decode
from ale.trajectory import Failure, Trajectory
from ale_ray.actor_calls import ActorLost, ask
from ale_ray.actor_messages import Sampling
from ale_ray.rollout_worker import AgentEnded, EncodedTrajectory
from ale_ray.rollout_workers import DEAD, SILENT, RolloutWorkers, WorkerHandle

BEGINNINGS = 4
"""An episode fails once this many workers have died while they made it: it is probably what ends them."""
END_S, PING_S = 120.0, 10.0
"""How long a worker may take to end an episode, with its sandbox, and to show that its process moves."""
ARRIVES_S = 2.0
"""How long the answer of an episode that had just ended may be under way."""


@dataclass(frozen=True)
class RemoteEpisodes(Episodes):
    """Has each episode made by a worker, or by this process if its start cannot be pickled."""

    workers: RolloutWorkers = None  # type: ignore[assignment]  # set when made

    def expect(self, requests: Sequence[RolloutRequest], stage: StageInfo) -> None:
        super().expect([request for request in requests if not is_portable(request)], stage)
        groups: dict[str, list[RolloutRequest]] = {}
        for request in requests:
            if request.start is not None and is_portable(request):
                groups.setdefault(request.group, []).append(request)
        for group, portable in groups.items():
            worker = self.workers.home(group)
            if worker is not None:
                worker.actor.expect.remote(portable, stage)

    async def run(self, request: RolloutRequest, stage: StageInfo) -> Trajectory:
        """Raises `EngineError` if no worker is left."""
        if not is_portable(request):
            return await super().run(request, stage)
        beginnings = 0
        while True:
            try:
                worker = await self.workers.enter(request.group)
            except asyncio.CancelledError:
                return self._unmade(request, stage, self._why_ended())
            actor = worker.actor
            try:
                if not worker.serving:
                    continue  # it has died since it was chosen
                beginnings += 1
                return await self._run_at(worker, actor, request, stage)
            except ActorLost as error:
                self.workers.suspect(worker, actor)
                if beginnings == BEGINNINGS:
                    often = f"The workers that made this episode died {beginnings} times: {error}"
                    return self._unmade(request, stage, SandboxError(often))
            finally:
                self.workers.leave(worker)

    async def _run_at(self, worker: WorkerHandle, actor: Any, request: RolloutRequest, stage: StageInfo) -> Trajectory:
        name, task, line = uuid.uuid4().hex, asyncio.current_task(), worker.line
        assert task is not None
        assert line is not None
        sampling = EpisodeSampling(self, task)
        asking = line.ask("act", name, request, stage)
        worker.listeners[name] = sampling
        try:
            answer = await asyncio.shield(asking)
            if isinstance(answer, AgentEnded):
                async with self.scoring():
                    asking = line.ask("finish", name)
                    answer = await asyncio.shield(asking)
        except asyncio.CancelledError:
            try:
                error = self._why_ended()
            except asyncio.CancelledError:
                actor.drop.remote(name)
                raise
            answer = await self._end_at(worker, actor, name, error) or await _arriving(asking)
            if answer is None:
                return self._unmade(request, stage, error)
        finally:
            asking.cancel()
            del worker.listeners[name]
            sampling.end()
        if answer is None:
            raise ActorLost(f"{worker.name} was closed.")
        self.workers.finish(worker)
        return decode(answer.text, answer.arrays)

    async def _end_at(self, worker: WorkerHandle, actor: Any, name: str, error: AleError) -> EncodedTrajectory | None:
        """End an episode with a failure; returns what there is of it, if anything."""
        ending = asyncio.ensure_future(ask(worker.name, actor.end.remote(name, error), END_S))
        try:
            while not ending.done():
                # It may take long, but a process that stands still does not answer anything.
                await ask(worker.name, actor.ping.remote(), PING_S)
                await asyncio.wait([ending], timeout=PING_S)
            answer: EncodedTrajectory | None = ending.result()
        except ActorLost:
            self.workers.suspect(worker, actor, DEAD)
            return None
        except TimeoutError:
            stuck = f"did not end an episode within {END_S:g} s"
            self.workers.suspect(worker, actor, stuck if ending.done() else SILENT)
            return None
        finally:
            ending.cancel()
        return answer

    def _why_ended(self) -> AleError:
        """Return the failure with which this cancelled task ends its episode. Raises `CancelledError` if it ends for
        good."""
        task = asyncio.current_task()
        if task is None or task not in self.ended:
            raise asyncio.CancelledError
        task.uncancel()
        return self.ended.pop(task)

    def _unmade(self, request: RolloutRequest, stage: StageInfo, error: AleError) -> Trajectory:
        """Return an empty trajectory with this failure: nothing of the episode has reached the run."""
        return replace(
            self.begin(uuid.uuid4().hex[:16], request, stage),
            failure=Failure(error.kind, str(error), error.retryable),
            rejected=f"{error.kind} failure",
            ended_by="failure",
        )


async def _arriving(asking: asyncio.Future[Any]) -> EncodedTrajectory | None:
    """Return the answer of an episode that had ended before it could be ended, if it comes."""
    await asyncio.wait([asking], timeout=ARRIVES_S)
    if not asking.done() or asking.cancelled() or asking.exception() is not None:
        return None
    answer = asking.result()
    return answer if isinstance(answer, EncodedTrajectory) else None


def is_portable(request: RolloutRequest) -> bool:
    """Return whether a rollout can be made in another process."""
    return request.start is None or request.start.portable


class EpisodeSampling:
    """It enters and leaves `Sessions.sampling` as the episode's requests do at the engines."""

    def __init__(self, episodes: Episodes, task: asyncio.Task[Any]) -> None:
        self._episodes = episodes
        self._session: Any = SimpleNamespace(opened_by=task)
        self._entered: list[AbstractContextManager[object]] = []

    def receive(self, message: Sampling) -> None:
        """Take a message of the worker."""
        if message.begins:
            entered = self._episodes.sessions.sampling(self._session)
            entered.__enter__()
            self._entered.append(entered)
        elif self._entered:
            self._entered.pop().__exit__(None, None, None)

    def end(self) -> None:
        """Leave what is still entered: the worker may have died."""
        while self._entered:
            self._entered.pop().__exit__(None, None, None)
