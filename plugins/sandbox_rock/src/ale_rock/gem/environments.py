"""Environments that are played in sandboxes: make, reset, step, close, for one agent or several.

1. `make` starts a sandbox whose labels say which environment it plays, so a restarted admin still knows it. The
   environment ends with its sandbox, or when it was idle for an hour.
2. What is played there is a program in the sandbox (`programs`: environments of gem and classes), or a task of ALE,
   which is played and scored from outside (`tasks`: names that begin with `ale:`).
3. One environment answers one request after the other. A failure or a time-out is reported as a sentence.
4. Several agents act in one sandbox, if the environment is made for that: an action and each part of the answer then
   have a value for each agent. Or each has a sandbox of its own: the labels of the first name all of them, and its id
   stands for them together.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from secrets import randbelow
from typing import Any, Generic, Protocol, TypeVar
from uuid import uuid4
from weakref import WeakValueDictionary

from ale.errors import TaskError
from ale.specs.reward import GradedSandbox
from ale.specs.sandbox import SandboxSpec
from ale_rock.envhub.models import EnvironmentPlan

ENV_LABEL, MEMBERS_LABEL = "ale.gem.env", "ale.gem.sandboxes"
TASKS = "ale:"
IDLE_S = 3600.0
Action = str | dict[str, str]
"""What an agent does, or what each of several does, by their names."""
Caller = TypeVar("Caller", contravariant=True)


class Sandboxes(Protocol[Caller]):
    """Where environments get their sandboxes. Only sandboxes of `caller` are found."""

    async def start(self, spec: SandboxSpec, caller: Caller) -> str:
        """Start a sandbox and return its id once commands can run in it. Raises `ConfigError` or `SandboxError`."""

    async def labels(self, sandbox_id: str, caller: Caller) -> Mapping[str, str]:
        """Return its labels. Raises `SandboxError` if there is none of this id."""

    def open(self, sandbox_id: str, caller: Caller, spec: SandboxSpec | None = None) -> GradedSandbox:
        """Return a sandbox; if it does not run, its next call raises. With the spec with which it was started, another
        one can be opened beside it."""

    async def remove(self, sandbox_id: str, caller: Caller) -> None:
        """Remove it. It is idempotent."""


class Player(Protocol[Caller]):
    """Plays one kind of environments. `labels` are those of the sandbox."""

    async def make(self, plan: EnvironmentPlan, spec: SandboxSpec, caller: Caller) -> str:
        """Make an environment in a new sandbox of this spec, and return the sandbox's id."""

    async def reset(
        self, sandbox_id: str, labels: Mapping[str, str], seed: int | None, caller: Caller
    ) -> dict[str, Any]:
        """Begin an episode."""

    async def step(self, sandbox_id: str, labels: Mapping[str, str], action: Action, caller: Caller) -> dict[str, Any]:
        """Carry out an action."""

    def forget(self, sandbox_id: str) -> None:
        """Forget a sandbox that is gone."""


class Environments(Generic[Caller]):
    """The environments in these sandboxes."""

    def __init__(self, sandboxes: Sandboxes[Caller], programs: Player[Caller], tasks: Player[Caller]) -> None:
        self._sandboxes = sandboxes
        self._programs, self._tasks = programs, tasks
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def _player(self, env_id: str) -> Player[Caller]:
        return self._tasks if env_id.startswith(TASKS) else self._programs

    async def make(self, plan: EnvironmentPlan, caller: Caller) -> str:
        """Make an environment in a new sandbox, or in one for each agent, and return the (first) sandbox's id. Raises
        `ConfigError`, `TaskError` if it cannot be made, `SandboxError` if a sandbox fails."""
        labels = {**plan.spec.labels, ENV_LABEL: plan.env_id}
        spec = plan.spec.model_copy(update={"labels": labels, "idle_s": plan.spec.idle_s or IDLE_S})
        if not plan.separate:
            return await self._player(plan.env_id).make(plan, spec, caller)
        ids = {agent: f"gem-{uuid4().hex}" for agent in plan.agents}
        first = ids[plan.agents[0]]

        def make_one(sandbox_id: str) -> Coroutine[Any, Any, str]:
            more = {MEMBERS_LABEL: json.dumps(ids)} if sandbox_id == first else {}
            own = spec.model_copy(update={"id": sandbox_id, "labels": {**labels, **more}})
            return self._player(plan.env_id).make(plan, own, caller)

        try:
            await _for_each(ids, make_one)
        except BaseException:
            removed = (self._sandboxes.remove(each, caller) for each in ids.values())
            await asyncio.shield(asyncio.gather(*removed, return_exceptions=True))
            raise
        return first

    async def reset(self, sandbox_id: str, seed: int | None, caller: Caller) -> dict[str, Any]:
        """Begin an episode; returns `observation` and `info`. Agents in separate sandboxes get the same seed. Raises
        `SandboxError`, `TaskError`."""
        async with self._turn(f"all of {sandbox_id}"):
            members = read_members(await self._labels(sandbox_id, caller))
            if not members:
                return await self._reset(sandbox_id, seed, caller)
            shared = randbelow(1 << 31) if seed is None else seed
            return _by_part(await _for_each(members, lambda each: self._reset(each, shared, caller)))

    async def step(self, sandbox_id: str, action: Action, caller: Caller) -> dict[str, Any]:
        """Carry out an action; returns `observation`, `reward`, `terminated`, `truncated`, `info`. Raises
        `SandboxError`, `TaskError`."""
        async with self._turn(f"all of {sandbox_id}"):
            members = read_members(await self._labels(sandbox_id, caller))
            if not members:
                return await self._step(sandbox_id, action, caller)
            actions = check_agents(action, tuple(members))
            texts = {members[agent]: text for agent, text in actions.items()}
            acting = {agent: members[agent] for agent in actions}
            return _by_part(await _for_each(acting, lambda each: self._step(each, texts[each], caller)))

    async def close(self, sandbox_id: str, caller: Caller) -> None:
        """Remove an environment with its sandboxes. Raises `TaskError` if that sandbox plays none."""
        labels = await self._labels(sandbox_id, caller)
        for each in [*(each for each in read_members(labels).values() if each != sandbox_id), sandbox_id]:
            self._player(labels[ENV_LABEL]).forget(each)
            await self._sandboxes.remove(each, caller)

    async def names(self, sandbox_id: str, caller: Caller) -> list[str]:
        """Return the environments in a sandbox. Raises `TaskError` if it plays none."""
        return [(await self._labels(sandbox_id, caller))[ENV_LABEL]]

    async def sandboxes_of(self, sandbox_id: str, caller: Caller) -> dict[str, str]:
        """Return the sandbox of each agent, if each has its own."""
        return read_members(await self._labels(sandbox_id, caller))

    async def _reset(self, sandbox_id: str, seed: int | None, caller: Caller) -> dict[str, Any]:
        async with self._turn(sandbox_id):
            labels = await self._labels(sandbox_id, caller)
            return await self._player(labels[ENV_LABEL]).reset(sandbox_id, labels, seed, caller)

    async def _step(self, sandbox_id: str, action: Action, caller: Caller) -> dict[str, Any]:
        async with self._turn(sandbox_id):
            labels = await self._labels(sandbox_id, caller)
            return await self._player(labels[ENV_LABEL]).step(sandbox_id, labels, action, caller)

    def _turn(self, of: str) -> asyncio.Lock:
        return self._turns.setdefault(of, asyncio.Lock())

    async def _labels(self, sandbox_id: str, caller: Caller) -> Mapping[str, str]:
        """Return the labels of a sandbox that plays an environment."""
        labels = await self._sandboxes.labels(sandbox_id, caller)
        if ENV_LABEL not in labels:
            raise TaskError(f"The sandbox {sandbox_id} plays no environment; /make starts one that does.")
        return labels


def read_members(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the sandboxes by agent, if each agent has its own. Raises `TaskError` for a label that is not ours."""
    try:
        found: Any = json.loads(labels.get(MEMBERS_LABEL, "{}"))
        return {str(agent): str(sandbox_id) for agent, sandbox_id in found.items()}
    except (ValueError, AttributeError, RecursionError):
        raise TaskError(f"The label {MEMBERS_LABEL} of the sandbox is not one that /make wrote.") from None


def check_agents(action: Action, agents: tuple[str, ...]) -> dict[str, str]:
    """Return the actions by agent. Raises `TaskError` if they are not those of these agents."""
    if isinstance(action, str) or not action or not set(action) <= set(agents):
        raise TaskError(f"An action here is an object with a text for each agent that acts: {', '.join(agents)}.")
    return action


async def _for_each(ids: Mapping[str, str], work: Callable[[str], Coroutine[Any, Any, Any]]) -> dict[str, Any]:
    """Do the same for several sandboxes at once, by agent. All have ended when this raises the first's error."""
    found = await asyncio.gather(*map(work, ids.values()), return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return dict(zip(ids, found, strict=True))


def _by_part(answers: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Turn answers by agent into one answer, of which each part is by agent."""
    parts = next(iter(answers.values()))
    return {part: {agent: answer[part] for agent, answer in answers.items()} for part in parts}
