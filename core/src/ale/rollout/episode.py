"""One episode: start a sandbox, let the scaffold drive the agent, score what it left, tear everything down.

Whatever goes wrong is attributed to one boundary and recorded once, in the trajectory: an episode returns, it does
not raise (but for cancellation and for mistakes in the run's own configuration). A failure is never a zero reward.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from ale.endpoint.prefill import Prefill
from ale.endpoint.session import EndpointSession, ModelEndpoint
from ale.errors import AgentError, AleError, BudgetExceeded, ConfigError, PluginError
from ale.hooks import Hooks
from ale.rollout.baking import Bakery
from ale.rollout.observed import EXEC_HOOKS, ObservedSandbox
from ale.rollout.replayed import Takeover
from ale.rollout.selection import Selection
from ale.rollout.side_calls import without_tools_aside
from ale.rollout.states import Expert, Starts, StartStates, State
from ale.rollout.walk import Walk
from ale.run_config import RolloutConfig, SandboxNeeds
from ale.specs.algorithm import RolloutRequest
from ale.specs.engine import Sampling
from ale.specs.events import ExecBy
from ale.specs.reward import Reward
from ale.specs.sandbox import Resources, Sandbox, SandboxProvider, SandboxSpec
from ale.specs.scaffold import Responder, Scaffold
from ale.task import Task
from ale.trajectory import Failure, Score, Trajectory
from ale.validation import named

log = logging.getLogger("ale.rollout")
T = TypeVar("T")
RL_STAGE, EXPERTS_STAGE, DEMONSTRATIONS_STAGE = "rl", "experts", "demonstrations"
TRAINED_STAGES = frozenset({RL_STAGE, EXPERTS_STAGE, DEMONSTRATIONS_STAGE})
"""The stages whose rollouts may be trained on; in any other a policy or a task is judged."""


@dataclass(frozen=True)
class Stage:
    """Where in the run a rollout is made: goes into each trajectory."""

    name: str
    step: int
    split: str
    temperature: float
    top_p: float = 1.0
    top_k: int = 0


@dataclass(frozen=True)
class Episodes:
    """What every episode of a run shares."""

    provider: Selection[SandboxProvider]
    scaffold: Selection[Scaffold]
    reward: Selection[Reward]
    endpoint: ModelEndpoint
    hooks: Hooks
    config: RolloutConfig
    needs: SandboxNeeds
    labels: Mapping[str, str]
    bakery: Bakery = field(default_factory=Bakery)
    states: StartStates | None = None
    """Where rollouts that begin behind an expert's chunks find its states; None: every expert is replayed."""

    def expect(self, requests: Sequence[RolloutRequest]) -> None:
        """These will be run: a walk along an expert keeps the states that any of them needs."""
        for request in requests:
            expert = self._forked_expert(request)
            if self.states is not None and expert is not None:
                self.states.want(expert, request.start_chunk)

    async def run(self, request: RolloutRequest, stage: Stage, responder: Responder | None = None) -> Trajectory:
        """Run one episode to its end."""
        episode_id = uuid.uuid4().hex[:16]
        expert = request.expert
        prefill = Prefill(expert, request.start_chunk, self.config.replay_ignore) if expert else None
        takeover = Takeover(prefill, responder)
        session = self._opened(episode_id, request, stage, takeover, prefill)
        trajectory = Trajectory(
            id=episode_id, task_id=request.task.id, split=stage.split, stage=stage.name, step=stage.step,
            group=request.group, seed=request.seed, policy_version=self.endpoint.engine.version,
            sequences=(), chunks=(), tags=request.task.tags, started_at=time.time(), start_chunk=request.start_chunk,
        )  # fmt: skip
        began = time.monotonic()
        timings: dict[str, float] = {}
        try:
            trajectory = replace(trajectory, made_with=self.made_with(request))
            return await self._act_and_score(request, stage, session, takeover, trajectory, timings)
        except ConfigError:
            raise
        except AleError as error:
            return self._failed(trajectory, session, error, timings, began)
        finally:
            self.endpoint.close(session)

    def _opened(
        self, episode_id: str, request: RolloutRequest, stage: Stage, responder: Responder, prefill: Prefill | None = None
    ) -> EndpointSession:  # fmt: skip
        sampling = Sampling(stage.temperature, stage.top_p, stage.top_k, self.config.max_tokens, seed=request.seed)
        return self.endpoint.open(
            episode_id, sampling, max_calls=self.config.max_calls, max_context=self.config.max_context,
            max_sampled_tokens=self.config.max_sampled_tokens, responder=responder, prefill=prefill,
        )  # fmt: skip

    def made_with(self, request: RolloutRequest) -> tuple[tuple[str, str], ...]:
        """Which plugins a rollout gets of the sections that leave a choice."""
        chosen = (s.made_with(request) for s in (self.provider, self.scaffold, self.reward))
        return tuple(pair for pairs in chosen for pair in pairs)

    async def _act_and_score(
        self, request: RolloutRequest, stage: Stage, session: EndpointSession, takeover: Takeover, trajectory: Trajectory,
        timings: dict[str, float],
    ) -> Trajectory:  # fmt: skip
        task = request.task
        began = time.monotonic()
        scaffold = self.scaffold.of(request).driver
        reward = self.reward.of(request).driver
        sandbox, state = await self._started(request, stage, session.id, timings)
        mark = time.monotonic()
        async with sandbox:
            self.hooks.call("ale_sandbox_started", sandbox_id=sandbox.id, episode_id=session.id, task=task)
            acting = self._observed(sandbox, session.id, task, "agent")
            if self.states is not None and state is not None:
                acting = takeover.stand_for(acting, state.record, state.tools, partial(self.states.diverged, state))
            ended_by = await self._act(scaffold, task, acting, session)
            takeover.check()
            mark = _lap(timings, "act", mark)
            trajectory = replace(self._recorded(trajectory, session), ended_by=ended_by)
            judged = self._observed(sandbox, session.id, task, "reward")
            score = checked_score(await _kept("reward", reward.score(task, judged, trajectory)))
            mark = _lap(timings, "score", mark)
        _lap(timings, "stop", mark)
        return replace(
            trajectory, reward=score, seconds=time.monotonic() - began, timings=tuple(timings.items())
        )  # fmt: skip

    async def _started(
        self, request: RolloutRequest, stage: Stage, episode_id: str, timings: dict[str, float]
    ) -> tuple[Sandbox, State | None]:
        """The episode's sandbox; where it is a fork of an expert's state, that too."""
        provider = self.provider.of(request).driver
        spec = await self._spec(request, episode_id, timings)
        expert = self._forked_expert(request)
        async with AsyncExitStack() as lent:
            state, mark = None, time.monotonic()
            if self.states is not None and expert is not None:
                walk = partial(self._walk, request, stage)
                state = await lent.enter_async_context(self.states.lend(expert, request.start_chunk, walk))
                mark = _lap(timings, "state", mark)
            sandbox = await _kept("sandbox", provider.start_sandbox(spec if state is None else state.fork(spec)))
            _lap(timings, "start", mark)
        return sandbox, state

    async def _spec(self, request: RolloutRequest, episode_id: str, timings: dict[str, float]) -> SandboxSpec:
        """A sandbox as the task and the agent find it at the beginning."""
        task = request.task
        provider = self.provider.of(request).driver
        resources = self.needs.resources
        if not self.needs.limits_given:
            # Defaults: for providers that can keep them; the files of an image of the task's own lie where no size is, and so
            # do those of containers of which images are made.
            layered = task.image or ("images" in provider.capabilities and self._forked_expert(request) is not None)
            limited = "limits" in provider.capabilities
            resources = resources.model_copy(update={"disk_mib": None} if layered else {}) if limited else Resources()
        spec = SandboxSpec(
            image=task.image, resources=resources, network=self.needs.network, allow=self.needs.allow,
            endpoint=None if self.needs.network == "none" else self.endpoint.origin, env=dict(task.env),
            files={path: text.encode() for path, text in task.files.items()},
            labels={**self.labels, "task": task.id, "episode": episode_id},
        )  # fmt: skip
        scaffold = self.scaffold.of(request).driver
        if scaffold.recipe is None:
            return spec
        mark = time.monotonic()
        baked = await _kept("sandbox", self.bakery.with_agent(scaffold.recipe, spec, provider, self.needs.limits_given))
        _lap(timings, "bake", mark)
        return baked

    def _forked_expert(self, request: RolloutRequest) -> Expert | None:
        """Of which expert the sandbox is to be a fork; None where it is to be new, and an expert's commands are run again."""
        if self.states is None or request.expert is None or request.start_chunk == 0:
            return None
        provider = self.provider.of(request).driver
        scaffold = self.scaffold.of(request).driver
        if scaffold.over_http or "snapshot" not in provider.capabilities:
            return None
        return Expert(provider, scaffold, request.task.id, request.expert.id)

    async def _walk(self, request: RolloutRequest, stage: Stage, starts: Starts) -> None:
        """Keep states of the request's expert, in a sandbox like the episode's own; see `Walk`."""
        assert request.expert is not None
        walk_id = f"walk-{uuid.uuid4().hex[:16]}"
        walk = Walk(request.expert, self.config.replay_ignore, starts)
        session = self._opened(walk_id, request, stage, walk.respond)
        provider, scaffold = starts.expert.provider, starts.expert.scaffold
        try:
            spec = await self._spec(request, walk_id, {})
            async with await _kept("sandbox", provider.start_sandbox(spec)) as sandbox:
                self.hooks.call("ale_sandbox_started", sandbox_id=sandbox.id, episode_id=walk_id, task=request.task)
                acting = self._observed(sandbox, walk_id, request.task, "agent")
                await walk.run(scaffold, request.task, acting, session, self.config.timeout_s)
        finally:
            self.endpoint.close(session)

    def _observed(self, sandbox: Sandbox, episode_id: str, task: Task, by: ExecBy) -> Sandbox:
        """The sandbox as it is, or, where somebody watches commands, one that tells of them."""
        watched = self.hooks.watches(*EXEC_HOOKS)
        return ObservedSandbox(sandbox, episode_id, task, by, self.hooks) if watched else sandbox

    async def _act(self, scaffold: Scaffold, task: Task, sandbox: Sandbox, session: EndpointSession) -> str:
        """The agent's part; a time-out or a spent budget ends it, and what it left is scored all the same, but for a rollout
        in which the policy's turn never came: that says nothing about the policy.

        An agent that speaks HTTP goes on, or ends, as it likes when a call fails: what its last call failed with is raised
        here, so that a lost engine never becomes a failed task.
        """
        try:
            async with asyncio.timeout(self.config.timeout_s):
                ended_by: object = await scaffold.run(task, sandbox, session)
        except BudgetExceeded:
            session.check_replayed()
            return "budget"
        except TimeoutError:
            session.check_replayed()
            return "timeout"
        except AleError:
            raise
        except Exception as error:
            log.exception("the scaffold crashed in episode %s", session.id)
            raise AgentError(f"The scaffold crashed: {named(error)}") from error
        if not (isinstance(ended_by, str) and ended_by):
            raise AgentError(
                f"The scaffold's run() must return why the agent ended, in a word; it returned {ended_by!r}."
            )
        if session.fault is not None:
            raise session.fault
        session.check_replayed()
        return "budget" if session.spent else ended_by

    def _recorded(self, trajectory: Trajectory, session: EndpointSession) -> Trajectory:
        """With all that was said."""
        sequences, chunks = session.recorder.sequences, session.recorder.chunks
        if self.config.side_calls == "no_tools":
            chunks = without_tools_aside(sequences, chunks)
        return replace(
            trajectory, sequences=sequences, chunks=chunks, observations=tuple(session.observations),
            changed_echoes=session.recorder.changed_echoes,
        )  # fmt: skip

    def _failed(
        self, trajectory: Trajectory, session: EndpointSession, error: AleError, timings: dict[str, float], began: float
    ) -> Trajectory:
        log.warning("episode %s of %s failed (%s): %s", trajectory.id, trajectory.task_id, error.kind, error)
        return replace(
            self._recorded(trajectory, session), reward=None,
            failure=Failure(error.kind, str(error), error.retryable), rejected=f"{error.kind} failure",
            ended_by="failure", seconds=time.monotonic() - began, timings=tuple(timings.items()),
        )  # fmt: skip


async def _kept(kind: str, call: Awaitable[T]) -> T:
    """What a plugin answers; what it raises that is none of ALE's errors becomes a `PluginError` that names it."""
    try:
        return await call
    except AleError:
        raise
    except Exception as error:
        log.exception("the %s plugin crashed", kind)
        raise PluginError(f"The {kind} plugin crashed: {named(error)}.") from error


def checked_score(score: object) -> Score:
    """A reward's answer. Raises `PluginError` for one that is no score."""
    if isinstance(score, Score) and isinstance(score.passed, bool) and math.isfinite(score.value):
        return score
    raise PluginError(
        f"The reward plugin must answer with an ale.trajectory.Score of a finite value, not {score!r:.100}."
    )


def _lap(timings: dict[str, float], name: str, since: float) -> float:
    now = time.monotonic()
    timings[name] = round(now - since, 6)
    return now
