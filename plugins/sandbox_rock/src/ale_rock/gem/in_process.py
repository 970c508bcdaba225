"""GEM's environments without a service: in sandboxes of this machine, from a program that is not asynchronous.

`SandboxedEnvironments` owns a sandbox provider, on an event loop in a thread of its own. Its environments have GEM's
methods (`client.GemEnvironment`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from threading import Thread
from typing import Any, Self, TypeVar

from ale.errors import SandboxError
from ale.registry.drivers import build_driver
from ale.specs.choice import PluginChoice
from ale.specs.driver import DriverContext
from ale.specs.reward import GradedSandbox
from ale.specs.sandbox import Sandbox, SandboxSpec
from ale_rock.envhub.models import EnvironmentPlan
from ale_rock.gem.client import GemEnvironment
from ale_rock.gem.environments import TASKS, Environments
from ale_rock.gem.programs import ProgramPlayer
from ale_rock.gem.task_sources import TaskSources, parse
from ale_rock.gem.tasks import TaskPlayer

T = TypeVar("T")


class ProviderSandboxes:
    """The sandboxes of one provider; there is one caller, which is None."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self._running: dict[str, Sandbox] = {}

    async def start(self, spec: SandboxSpec, caller: None) -> str:
        box: Sandbox = await self._provider.start_sandbox(spec)
        self._running[box.id] = box
        return box.id

    async def labels(self, sandbox_id: str, caller: None) -> Mapping[str, str]:
        return self._find(sandbox_id).spec.labels

    def open(self, sandbox_id: str, caller: None, spec: SandboxSpec | None = None) -> GradedSandbox:
        box: Any = self._find(sandbox_id)
        own = box.spec.model_copy(update={"id": None})
        box.open_another = lambda: open_sandbox(self._provider, own)  # it is a `GradedSandbox` now
        graded: GradedSandbox = box
        return graded

    async def remove(self, sandbox_id: str, caller: None) -> None:
        box = self._running.pop(sandbox_id, None)
        if box is not None:
            await box.stop()

    def _find(self, sandbox_id: str) -> Sandbox:
        if sandbox_id not in self._running:
            raise SandboxError(f"The sandbox {sandbox_id} does not run.")
        return self._running[sandbox_id]


@asynccontextmanager
async def open_sandbox(provider: Any, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
    """Start a sandbox, which ends with the block."""
    async with await provider.start_sandbox(spec) as box:
        yield box


class SandboxedEnvironments:
    """Environments in sandboxes of this machine; `with` starts the provider and ends all sandboxes.

    `settings` are those of the sandbox provider, `task_sources` as in the service's settings: a source that is not
    named there has its own defaults."""

    def __init__(
        self,
        sandbox: str = "local",
        settings: Mapping[str, Any] | None = None,
        task_sources: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        choice = PluginChoice(use=sandbox, settings=dict(settings or {}))
        self._provider: Any = build_driver("sandbox", choice, DriverContext(run_id="gem"))
        self._sections = {name: dict(section) for name, section in (task_sources or {}).items()}
        self._sources = TaskSources(self._sections)
        sandboxes = ProviderSandboxes(self._provider)
        tasks: TaskPlayer[None] = TaskPlayer(sandboxes, self._sources)
        programs: ProgramPlayer[None] = ProgramPlayer(sandboxes)
        self.environments: Environments[None] = Environments(sandboxes, programs, tasks)
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="gem-environments", daemon=True)

    def make(self, plan: EnvironmentPlan | str, seed: int | None = None) -> GemEnvironment:
        """Make an environment by its name, or as a plan says. Raises as `Environments.make`."""
        if isinstance(plan, str):
            plan = EnvironmentPlan(plan)
        if plan.env_id.startswith(TASKS):
            self._sections.setdefault(parse(plan.env_id)[0], {})
        return _LocalEnvironment(self, plan, seed)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop, and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.run(self._provider.start())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self.run(self._sources.close())
            self.run(self._provider.close())
        finally:
            self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _LocalEnvironment(GemEnvironment):
    def __init__(self, here: SandboxedEnvironments, plan: EnvironmentPlan, seed: int | None) -> None:
        self._here, self._plan = here, plan
        super().__init__(plan.env_id, seed)

    def _call(self, what: str, **asked: Any) -> dict[str, Any]:
        environments, sandbox_id = self._here.environments, asked.get("sandbox_id", "")
        if what == "make":
            made = self._here.run(environments.make(self._plan, None))
            return {"sandbox_id": made, "sandboxes": self._here.run(environments.sandboxes_of(made, None))}
        if what == "reset":
            return self._here.run(environments.reset(sandbox_id, asked["seed"], None))
        if what == "step":
            return self._here.run(environments.step(sandbox_id, asked["action"], None))
        self._here.run(environments.close(sandbox_id, None))
        return {}
