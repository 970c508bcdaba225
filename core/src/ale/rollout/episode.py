"""One episode: start a sandbox, let the scaffold drive the agent, score what it left, and stop everything.

Every error is attributed to one boundary and recorded once, in the trajectory: an episode returns, it does not raise
(except for cancellation and for mistakes in the run's own configuration). A failure is never a zero reward.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from ale.config.episode import RolloutConfig, SandboxNeeds
from ale.errors import AgentError, AleError, BudgetExceeded, ConfigError, OverlongPrompt, PluginError
from ale.registry.foreign_code import Cancellations, catch_all, run_apart
from ale.registry.hooks import Hooks
from ale.registry.validation import as_plugin_error, describe_error
from ale.rollout.no_sandbox import NoSandbox, NoSandboxes
from ale.rollout.sandbox_spec import make_spec
from ale.rollout.sandbox_wrappers.observed import ObservedSandbox
from ale.rollout.selection import Selection
from ale.rollout.side_calls import mark_side_calls
from ale.session.session import RecordedSession, Sessions
from ale.specs.algorithm import RolloutRequest
from ale.specs.choice import OVERLONG, Overlong
from ale.specs.engine import Sampling
from ale.specs.events import EXEC_HOOKS, ExecBy
from ale.specs.reward import Reward
from ale.specs.sandbox import Sandbox, SandboxProvider, SandboxSpec
from ale.specs.scaffold import Scaffold
from ale.specs.start import Opening, Responder, StartContext
from ale.task import Task
from ale.trajectory import Failure, Score, Trajectory

log = logging.getLogger("ale.rollout")
T = TypeVar("T")
RL_STAGE, PREPARE_STAGE, DEMONSTRATIONS_STAGE = "rl", "prepare", "demonstrations"
TRAINED_STAGES = frozenset({RL_STAGE, PREPARE_STAGE, DEMONSTRATIONS_STAGE})
"""The stages whose rollouts may be trained on; other stages judge a policy or a task."""


@dataclass(frozen=True)
class StageInfo:
    """The position in the run at which a rollout is made; it is stored in each trajectory."""

    name: str
    step: int
    split: str
    temperature: float
    top_p: float = 1.0
    top_k: int = 0


@dataclass(frozen=True)
class Episodes:
    """The objects that all episodes of a run share."""

    provider: Selection[SandboxProvider]
    scaffold: Selection[Scaffold]
    reward: Selection[Reward]
    sessions: Sessions
    hooks: Hooks
    config: RolloutConfig
    needs: SandboxNeeds
    labels: Mapping[str, str]
    ended: dict[asyncio.Task[object], AleError] = field(default_factory=dict)
    """Tasks cancelled because their episode hangs or is not needed, and the failure that its trajectory gets."""
    overlong: Overlong = OVERLONG
    """What is done about a task whose first prompt leaves no room for a reply (`tasks.overlong`)."""
    scoring: Callable[[], AbstractAsyncContextManager[object]] = nullcontext
    """Held while a reward is computed: it may give back the episode's place, as its agent has ended."""

    def expect(self, requests: Sequence[RolloutRequest], stage: StageInfo) -> None:
        """Announce the rollouts that will be made: a start may prepare several of them at once."""
        for request in requests:
            if request.start is not None:
                with as_plugin_error("The start of the rollout crashed", log):
                    request.start.expect(self._start_context(request, stage))

    async def run(self, request: RolloutRequest, stage: StageInfo) -> Trajectory:
        """Run one episode to its end."""
        episode_id = uuid.uuid4().hex[:16]
        trajectory = self.begin(episode_id, request, stage)
        opening, failed = self._open_start(request, stage)
        session = self._open_session(episode_id, request, stage, opening.respond)
        session.opened_by = task = asyncio.current_task()
        began, cancellations = time.monotonic(), Cancellations()
        timings: dict[str, float] = {}
        try:
            if failed is not None:
                raise failed
            with as_plugin_error("A plugin crashed", log):
                own = replace(request, task=with_own_metadata(request.task))
                return await self._act_and_score(own, opening, session, trajectory, timings)
        except ConfigError:
            raise
        except (AleError, asyncio.CancelledError) as error:
            if cancellations.any or not isinstance(error, AleError):
                if task is None or task not in self.ended:
                    raise asyncio.CancelledError from error
                task.uncancel()
                error = self.ended.pop(task)
            return self._failed_trajectory(trajectory, session, error, timings, began)
        finally:
            session.close()

    def _open_start(self, request: RolloutRequest, stage: StageInfo) -> tuple[Opening, AleError | None]:
        """Open the request's start; returns its opening, or a plain one and the error that the start has raised."""
        if request.start is None:
            return Opening(), None
        try:
            with as_plugin_error("The start of the rollout crashed", log):
                return request.start.open(self._start_context(request, stage)), None
        except AleError as error:
            return Opening(), error

    def begin(self, episode_id: str, request: RolloutRequest, stage: StageInfo) -> Trajectory:
        """Return the trajectory of an episode of which nothing has happened yet."""
        return Trajectory(
            id=episode_id,
            task_id=request.task.id,
            split=stage.split,
            stage=stage.name,
            step=stage.step,
            group=request.group,
            seed=request.seed,
            policy_version=self.sessions.engine.version,
            sequences=(),
            chunks=(),
            tags=request.task.tags,
            started_at=time.time(),
            made_with=tuple(pair for s in (self.provider, self.scaffold, self.reward) for pair in s.made_with(request)),
            start_chunk=request.start_chunk,
        )

    def _open_session(
        self, episode_id: str, request: RolloutRequest, stage: StageInfo, responder: Responder
    ) -> RecordedSession:
        sampling = Sampling(stage.temperature, stage.top_p, stage.top_k, self.config.max_tokens, seed=request.seed)
        return self.sessions.open(
            episode_id,
            sampling,
            max_calls=self.config.max_calls,
            max_context=self.config.max_context,
            max_sampled_tokens=self.config.max_sampled_tokens,
            responder=responder,
            shortens=self.overlong == "truncate" and stage.name != DEMONSTRATIONS_STAGE,
        )

    async def _act_and_score(
        self,
        request: RolloutRequest,
        opening: Opening,
        session: RecordedSession,
        trajectory: Trajectory,
        timings: dict[str, float],
    ) -> Trajectory:
        task = request.task
        began = time.monotonic()
        scaffold = self.scaffold.of(request).driver
        reward = self.reward.of(request).driver
        sandbox = await self._start_sandbox(request, opening, session.id, timings)
        mark = time.monotonic()
        async with sandbox:
            if not isinstance(sandbox, NoSandbox):
                self.hooks.call("ale_sandbox_started", sandbox_id=sandbox.id, episode_id=session.id, task=task)
            acting = opening.wrap(self._watch_sandbox(sandbox, session.id, task, "agent"))
            ended_by = await self._act(scaffold, task, acting, session)
            opening.check()
            mark = _lap(timings, "act", mark)
            trajectory = replace(self._add_record(trajectory, session), ended_by=ended_by)
            judged: Any = self._watch_sandbox(sandbox, session.id, task, "reward")
            judged.open_another = partial(self._open_for_grading, request, session.id)  # it is a `GradedSandbox` now
            async with self.scoring():
                score: object = await guard_plugin_call("reward", reward.score, task, judged, trajectory, apart=True)
            mark = _lap(timings, "score", mark)
        _lap(timings, "stop", mark)
        score = validate_score(score, trajectory)
        return replace(trajectory, reward=score, seconds=time.monotonic() - began, timings=tuple(timings.items()))

    async def _start_sandbox(
        self, request: RolloutRequest, opening: Opening, episode_id: str, timings: dict[str, float]
    ) -> Sandbox:
        """Start the episode's sandbox, as its start has prepared it."""
        provider = self.provider.of(request).driver
        spec = await self._spec(request, episode_id, timings)
        mark = time.monotonic()
        with as_plugin_error("The start of the rollout crashed", log):
            async with opening.prepare(spec) as prepared:
                if prepared is not spec:
                    mark = _lap(timings, "state", mark)
                sandbox = await guard_plugin_call("sandbox", provider.start_sandbox, prepared)
                _lap(timings, "start", mark)
        return sandbox

    async def _spec(self, request: RolloutRequest, episode_id: str, timings: dict[str, float]) -> SandboxSpec:
        """Return the spec of a sandbox as the task and the agent find it at the beginning."""
        task, provider, scaffold = request.task, self.provider.of(request).driver, self.scaffold.of(request).driver
        labels = {**self.labels, "episode": episode_id}
        mark = time.monotonic()
        spec = await guard_plugin_call("sandbox", make_spec, task, provider, self.needs, labels)
        if isinstance(provider, NoSandboxes):
            return spec
        if task.build is not None:
            mark = _lap(timings, "build", mark)
        prepared = await guard_plugin_call("scaffold", scaffold.prepare, spec, provider)
        if prepared is not spec:
            _lap(timings, "prepare", mark)
        changed: dict[str, object] = {}
        # The files of its image are in layers, whose size cannot be limited: the task's own, and a snapshot of it.
        layers = prepared.image or (prepared.from_snapshot and "images" in provider.capabilities)
        if layers and not self.needs.limits_given:
            changed["resources"] = prepared.resources.model_copy(update={"disk_mib": None})
        if prepared.network == "endpoint-only" and prepared.endpoint is None:
            changed["network"] = "none"  # without an endpoint there is nothing to allow
        return prepared.model_copy(update=changed)

    def _start_context(self, request: RolloutRequest, stage: StageInfo) -> StartContext:
        return StartContext(
            request.task,
            self.provider.of(request).driver,
            self.scaffold.of(request).driver,
            self._agent_seconds(request.task),
            not self.needs.limits_given,
            partial(self._another, request, stage),
        )

    @asynccontextmanager
    async def _another(
        self, request: RolloutRequest, stage: StageInfo, spec: SandboxSpec, responder: Responder
    ) -> AsyncIterator[tuple[Sandbox, RecordedSession]]:
        """Start a sandbox and a session beside those of the rollout; see `StartContext.open_another`."""
        session_id = f"start-{uuid.uuid4().hex[:16]}"
        session = self._open_session(session_id, request, stage, responder)
        spec = spec.model_copy(update={"labels": {**spec.labels, "episode": session_id}})
        try:
            start = self.provider.of(request).driver.start_sandbox
            async with await guard_plugin_call("sandbox", start, spec) as sandbox:
                self.hooks.call("ale_sandbox_started", sandbox_id=sandbox.id, episode_id=session_id, task=request.task)
                yield self._watch_sandbox(sandbox, session_id, request.task, "agent"), session
        finally:
            session.close()

    @asynccontextmanager
    async def _open_for_grading(self, request: RolloutRequest, episode_id: str) -> AsyncIterator[Sandbox]:
        """Start a sandbox apart for the reward; see `GradedSandbox.open_another`."""
        provider = self.provider.of(request).driver
        labels = {**self.labels, "episode": episode_id}
        spec = await guard_plugin_call("sandbox", make_spec, request.task, provider, self.needs, labels)
        mode = "none" if spec.network == "endpoint-only" else spec.network  # no agent runs in it
        started = guard_plugin_call("sandbox", provider.start_sandbox, spec.model_copy(update={"network": mode}))
        async with await started as sandbox:
            yield self._watch_sandbox(sandbox, episode_id, request.task, "reward")

    def _agent_seconds(self, task: Task) -> float:
        """Return the seconds that the agent has: the task's own, within the limit of the run file if it sets one."""
        ours, own = self.config.timeout_s, task.timeout_s or self.config.timeout_s
        return min(own, ours) if "timeout_s" in self.config.model_fields_set else own

    def _watch_sandbox(self, sandbox: Sandbox, episode_id: str, task: Task, by: ExecBy) -> Sandbox:
        """Return the sandbox itself, or a wrapper that calls the observers if one of them has hooks for commands."""
        if not self.hooks.has_implementation(*EXEC_HOOKS):
            return sandbox
        return ObservedSandbox(sandbox, episode_id, task, by, self.hooks)

    async def _act(self, scaffold: Scaffold, task: Task, sandbox: Sandbox, session: RecordedSession) -> str:
        """Run the agent; a time-out or a used-up budget ends it, and what it left is scored all the same.

        An agent that speaks HTTP may go on or end after a failed call: the error of its last call is raised here, so
        that a lost engine never becomes a failed task."""
        ended_by: object = ""
        with catch_all() as caught:
            async with asyncio.timeout(self._agent_seconds(task)):
                ended_by = await run_apart(scaffold.run(task, sandbox, session))
        if session.overlong and self.overlong == "fail":
            raise ConfigError(
                f"tasks.overlong: the task {task.id} is too long for rollout.max_context, and 'fail' ends the run: "
                f"{session.overlong} Raise rollout.max_context, or set tasks.overlong to drop or truncate."
            )
        if session.overlong:
            raise OverlongPrompt(f"The task is too long for rollout.max_context: {session.overlong}")
        for error in caught:
            if isinstance(error, BudgetExceeded):
                return "budget"
            if isinstance(error, TimeoutError):
                return "timeout"
            if isinstance(error, AleError):
                raise error
            log.error("the scaffold crashed in episode %s", session.id, exc_info=error)
            raise AgentError(f"The scaffold crashed: {describe_error(error)}") from error
        if not (isinstance(ended_by, str) and ended_by):
            raise AgentError(f"The scaffold's run() must return why the agent ended, in a word, not {ended_by!r}.")
        if session.fault is not None:
            raise session.fault
        return "budget" if session.spent else ended_by

    def _add_record(self, trajectory: Trajectory, session: RecordedSession) -> Trajectory:
        """Return the trajectory with what the session recorded."""
        sequences, chunks = session.recorder.sequences, session.recorder.chunks
        if self.config.side_calls == "no_tools":
            chunks = mark_side_calls(sequences, chunks, session.offers_tools)
        return replace(
            trajectory,
            sequences=sequences,
            chunks=chunks,
            observations=tuple(session.observations),
            changed_echoes=session.recorder.changed_echoes,
            template_rewrites=session.recorder.template_rewrites,
        )

    def _failed_trajectory(
        self, trajectory: Trajectory, session: RecordedSession, error: AleError, timings: dict[str, float], began: float
    ) -> Trajectory:
        same = {"same_as": f"{error.kind}: {error}"}
        log.warning(
            "episode %s of %s failed (%s): %s", trajectory.id, trajectory.task_id, error.kind, error, extra=same
        )
        return replace(
            self._add_record(trajectory, session),
            reward=None,
            failure=Failure(error.kind, str(error), error.retryable),
            rejected=f"{error.kind} failure",
            ended_by="failure",
            seconds=time.monotonic() - began,
            timings=tuple(timings.items()),
        )


async def guard_plugin_call(kind: str, method: Callable[..., Awaitable[T]], *arguments: Any, apart: bool = False) -> T:
    """Await a plugin's answer, in a task of its own if it is called `apart`; whatever it raises that is no `AleError`
    becomes a `PluginError` that names the plugin."""
    with as_plugin_error(f"The {kind} plugin crashed", log):
        return await (run_apart(method(*arguments)) if apart else method(*arguments))


def with_own_metadata(task: Task) -> Task:
    """Return the task with a copy of its metadata: what an episode changes there must not reach another one."""
    return task.model_copy(update={"metadata": deepcopy(task.metadata)})


def validate_score(score: object, trajectory: Trajectory) -> Score:
    """Return a reward's answer. Raises `PluginError` if it is not a valid score."""
    if not (isinstance(score, Score) and isinstance(score.passed, bool)):
        raise PluginError(f"The reward plugin must answer with an ale.trajectory.Score, not {score!r:.100}.")
    if not all(map(math.isfinite, (score.value, *score.parts.values()))):
        raise PluginError(f"The reward plugin must answer with finite numbers, not {score!r:.300}.")
    chunks = len(trajectory.chunks)
    if score.by_chunk and (len(score.by_chunk) != chunks or not all(map(math.isfinite, score.by_chunk))):
        raise PluginError(
            f"The reward plugin's Score.by_chunk must hold a finite number for each of the {chunks} chunks of the "
            f"trajectory, not {score.by_chunk!r:.100}."
        )
    return score


def _lap(timings: dict[str, float], name: str, since: float) -> float:
    now = time.monotonic()
    timings[name] = round(now - since, 6)
    return now
