"""Tasks of ALE as environments: an action is a shell command, and the task's hidden tests give the reward at the end.

1. The first observation is the task's instruction. An action is the last ```-block of a text, or else all of it, and
   runs in the work folder; the observation is its output. `finish` ends the episode, and so does the last turn.
2. Each episode begins in an unused sandbox: `reset` starts another one under the same id.
3. Several agents act in one work folder at the same time. The episode ends when each has said `finish`, and the reward
   is that of all.
4. Tests are never in the agents' sandbox: the reward `tests` runs them from outside, as in a run.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ale.errors import ConfigError, TaskError
from ale.registry.drivers import build_driver
from ale.registry.validation import one_line_error
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale.specs.sandbox import SandboxSpec
from ale.task import Task, as_bytes
from ale.trajectory import Score, Trajectory
from ale_rock.envhub.models import EnvironmentPlan
from ale_rock.gem.environments import ENV_LABEL, Action, Caller, Sandboxes, check_agents
from ale_rock.gem.task_sources import MOST_TASKS, TaskSources

PLAN_LABEL = "ale.gem.plan"
KEPT = {"image", "network", "resources", "idle_s", "lifetime_s"}
"""The fields of a plan's spec that the sandbox of each episode needs."""
FINISH = "finish"
BLOCK = re.compile(r"```[a-z]*\n(.*?)```", re.DOTALL)
SHOWN = 8000
"""The most characters of an output that an agent is shown."""
MOST_EPISODES = 50_000


class TaskSettings(BaseModel):
    """`settings` of an environment that is a task of ALE."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_turns: int = Field(30, gt=0, description="Steps after which the episode ends.")
    timeout_s: float = Field(60.0, gt=0, le=240, description="Seconds that a command may take.")


@dataclass
class Episode:
    """The episode that is played in a sandbox."""

    task: Task
    spec: SandboxSpec
    settings: TaskSettings
    agents: tuple[str, ...]
    """The empty name alone, if there is one agent."""
    begun: bool = False
    """Whether an agent was shown the task, so that the next reset needs another sandbox."""
    turns: int = 0
    finished: set[str] = field(default_factory=set)
    over: bool = False


class TaskPlayer(Generic[Caller]):
    """The `Player` of tasks. Episodes are kept in memory, so after a restart an environment has to be reset."""

    def __init__(self, sandboxes: Sandboxes[Caller], sources: TaskSources) -> None:
        self._sandboxes, self._sources = sandboxes, sources
        self._episodes: OrderedDict[str, Episode] = OrderedDict()

    async def make(self, plan: EnvironmentPlan, spec: SandboxSpec, caller: Caller) -> str:
        """Raises `ConfigError` if there is no such task or it cannot be played, `SandboxError`."""
        try:
            settings = TaskSettings.model_validate(dict(plan.settings))
        except ValidationError as error:
            raise ConfigError(f"settings of {plan.env_id}: {one_line_error(error)}") from None
        agents = plan.agents if plan.agents and not plan.separate else ("",)
        kept = {
            "spec": spec.model_dump(mode="json", include=KEPT, exclude_defaults=True),
            "settings": settings.model_dump(),
            "agents": agents,
        }
        base = spec.model_copy(update={"labels": {**spec.labels, PLAN_LABEL: json.dumps(kept)}})
        task = await self._sources.find(plan.env_id, 0)
        wanted = spec_for(task, base)
        sandbox_id = await self._sandboxes.start(wanted, caller)
        self._remember(sandbox_id, Episode(task, wanted, settings, agents))
        return sandbox_id

    async def reset(
        self, sandbox_id: str, labels: Mapping[str, str], seed: int | None, caller: Caller
    ) -> dict[str, Any]:
        task = await self._sources.find(labels[ENV_LABEL], secrets.randbelow(MOST_TASKS) if seed is None else seed)
        episode = self._episodes.get(sandbox_id)
        if episode is None or episode.begun or episode.task != task:
            episode = read_plan(sandbox_id, labels, task)
            await self._sandboxes.remove(sandbox_id, caller)
            await self._sandboxes.start(episode.spec, caller)
        episode.begun = True
        self._remember(sandbox_id, episode)
        shown = "\n".join([*(message.content for message in task.messages), task.instruction])
        info = {"task": task.id, "tags": list(task.tags)}
        if episode.agents == ("",):
            return {"observation": shown, "info": info}
        return {"observation": dict.fromkeys(episode.agents, shown), "info": dict.fromkeys(episode.agents, info)}

    async def step(self, sandbox_id: str, labels: Mapping[str, str], action: Action, caller: Caller) -> dict[str, Any]:
        episode = self._episodes.get(sandbox_id)
        if episode is None or not episode.begun or episode.over:
            raise TaskError(f"No episode is under way in {labels[ENV_LABEL]} ({sandbox_id}); reset it first.")
        alone = episode.agents == ("",)
        if alone and not isinstance(action, str):
            raise TaskError(f"{labels[ENV_LABEL]} is for one agent, so an action is a text.")
        actions = {"": action} if isinstance(action, str) and alone else check_agents(action, episode.agents)
        already = episode.finished & set(actions)
        if already:
            raise TaskError(f"{', '.join(sorted(already))} has finished; the others act on.")
        shown = await self._act(sandbox_id, episode, actions, caller)
        episode.turns += 1
        terminated = episode.finished == set(episode.agents)
        truncated = not terminated and episode.turns >= episode.settings.max_turns
        reward, info = 0.0, dict[str, Any](turns=episode.turns)
        if terminated or truncated:
            episode.over = True
            score = await self._score(sandbox_id, episode, labels[ENV_LABEL], caller)
            reward, info = score.value, {**info, "passed": score.passed, "detail": score.detail}
        answer = {"reward": reward, "terminated": terminated, "truncated": truncated, "info": info}
        if alone:
            return {"observation": shown[""], **answer}
        heard = episode.agents if episode.over else tuple(actions)
        by_agent: dict[str, Any] = {part: dict.fromkeys(heard, value) for part, value in answer.items()}
        return {"observation": {agent: shown.get(agent, "") for agent in heard}, **by_agent}

    def forget(self, sandbox_id: str) -> None:
        self._episodes.pop(sandbox_id, None)

    def _remember(self, sandbox_id: str, episode: Episode) -> None:
        self._episodes[sandbox_id] = episode
        self._episodes.move_to_end(sandbox_id)
        while len(self._episodes) > MOST_EPISODES:  # their sandboxes ended long ago
            self._episodes.popitem(last=False)

    async def _act(
        self, sandbox_id: str, episode: Episode, actions: Mapping[str, str], caller: Caller
    ) -> dict[str, str]:
        """Run the commands of all agents at once and return what each is shown."""
        box, limit_s = self._sandboxes.open(sandbox_id, caller), episode.settings.timeout_s

        async def run(text: str) -> str:
            done = await box.exec(text, timeout_s=limit_s)
            words, left_out = done.output, len(done.output) - SHOWN
            if left_out > 0:
                half = SHOWN // 2
                words = f"{words[:half]}\n... {left_out} characters are left out ...\n{words[-half:]}"
            if done.timed_out:
                return f"{words}\n(stopped after {limit_s:g} s)"
            return f"{words}\n(exit code {done.exit_code})" if done.exit_code else words

        commands = {agent: find_command(text) for agent, text in actions.items()}
        acting = {agent: command for agent, command in commands.items() if command != FINISH}
        outputs = await asyncio.gather(*map(run, acting.values()), return_exceptions=True)
        for each in outputs:
            if isinstance(each, BaseException):
                raise each
        episode.finished |= set(commands) - set(acting)
        return dict.fromkeys(actions, "") | dict(zip(acting, map(str, outputs), strict=True))

    async def _score(self, sandbox_id: str, episode: Episode, env_id: str, caller: Caller) -> Score:
        """Run the task's tests. Raises `SandboxError` if the sandbox is lost, which is never a zero."""
        reward: Any = build_driver("reward", PluginChoice(use="tests"), DriverContext())
        played = Trajectory(
            id=sandbox_id, task_id=episode.task.id, split=env_id, stage="gem", step=0, group=sandbox_id, seed=0,
            policy_version=0, sequences=(), chunks=(),
        )  # fmt: skip
        box = self._sandboxes.open(sandbox_id, caller, episode.spec)
        score: Score = await reward.score(episode.task, box, played)
        return score


def read_plan(sandbox_id: str, labels: Mapping[str, str], task: Task) -> Episode:
    """Return the episode of a task by what `make` wrote into the labels. Raises `TaskError` if somebody else did."""
    try:
        kept = json.loads(labels[PLAN_LABEL])
        base = SandboxSpec(id=sandbox_id, labels=dict(labels), **kept["spec"])
        return Episode(task, spec_for(task, base), TaskSettings(**kept["settings"]), tuple(map(str, kept["agents"])))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise TaskError(
            f"The labels of the sandbox {sandbox_id} are not those of an environment ({error!r})."
        ) from None


def spec_for(task: Task, base: SandboxSpec) -> SandboxSpec:
    """Return the spec of a task's sandbox: the environment's own, and what the task asks for. Raises `ConfigError` for
    a task that cannot be played."""
    if task.tests is None:
        raise ConfigError(f"The task {task.id} has no tests, so nothing here could score it.")
    if task.build is not None:
        raise ConfigError(f"The task {task.id} needs an image that is built for it; build and name one as `image`.")
    own = {} if task.resources is None else task.resources.model_dump(exclude_none=True)
    changed: dict[str, Any] = {
        "image": task.image or base.image,
        "resources": base.resources.model_copy(update=own),
        "env": dict(task.env),
        "user": task.user,
        "files": {path: as_bytes(content) for path, content in task.files.items()},
        "labels": {**base.labels, "task": task.id},
    }
    if task.network is not None:
        changed |= {"network": task.network, "allow": task.allow}
    if task.workdir is not None:
        changed["workdir"] = task.workdir
    return base.model_copy(update=changed)


def find_command(text: str) -> str:
    """Return the command in an agent's text: its last block of code, or all of it."""
    blocks = BLOCK.findall(text)
    return (blocks[-1] if blocks else text).strip()
