"""The worker's sandboxes: starts and stops them, knows which ended by themselves and why, and reports that.

A sandbox belongs to the provider in this process. When the process ends, even by `kill -9`, the providers see
to it that its sandboxes end, too. What is left on disk is removed by the next start of a provider.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from weakref import WeakValueDictionary

from ale.errors import ConfigError, SandboxError
from ale.specs.driver import Driver, Lifecycle
from ale.specs.sandbox import Sandbox, SandboxProvider, SandboxSpec
from ale.specs.sandbox_protocols import KeepsSnapshots, Shell, Snapshots, lacks
from ale_rock.schemas import CreateSandbox, HeldSandbox, RockError, SandboxCreated
from ale_rock.worker.failed_removals import FailedRemovals
from ale_rock.worker.images import images_of, may_be_gone
from ale_rock.worker.liveness import LifeWatch
from ale_rock.worker.logs import SandboxLogs
from ale_rock.worker.machine import capacity
from ale_rock.worker.ports import SandboxPorts
from ale_rock.worker.refused_connections import RefusedConnectionChannel
from ale_rock.worker.rocklet import Rocklet
from ale_rock.worker.settings import WorkerSettings
from ale_rock.worker.usage import UsageMeter
from ale_rock.worker.warm_sandboxes import WarmSandboxes, memory_of
from ale_sandbox.network.policy import network_plan
from ale_sandbox.sandboxes.sandbox import ResidentSandbox

log = logging.getLogger("ale.rock.worker")
MOST_ENDED = 10_000
"""How many ended sandboxes are remembered with their reasons."""


@dataclass(slots=True)
class Held:
    """A sandbox that runs."""

    sandbox: Sandbox
    rocklet: Rocklet
    request: CreateSandbox
    """The request that started it, without the password of a registry."""
    created: SandboxCreated
    ports: SandboxPorts
    usage: UsageMeter
    shells: dict[str, Shell] = field(default_factory=dict)
    """Shells of ALE's own provider; they end with the sandbox."""


class WorkerService(Lifecycle):
    """Owns a provider, which it starts and closes, and its sandboxes."""

    def __init__(self, provider: SandboxProvider, settings: WorkerSettings) -> None:
        self.provider, self.settings = provider, settings
        self.held: dict[str, Held] = {}
        self.ended: dict[str, str] = {}
        """The latest sandboxes that ended by themselves, and why."""
        self.logs, self.refusals = SandboxLogs(), RefusedConnectionChannel()
        self.images: set[str] = set(settings.images)
        self.on_ended: Callable[[str, str], None] | None = None
        """Called with id and reason when a sandbox has ended by itself."""
        self.worker_id: str | None = None
        """The id that the admin has given this worker; None while it is not registered."""
        self.former_id: str | None = None
        """The id of its registration before."""
        self.on_refused: Callable[[str], None] | None = None
        """Called with a sentence if the admin refuses this worker; not while it has sandboxes."""
        self._starting: dict[str, asyncio.Task[Held]] = {}
        self._clearing: dict[str, asyncio.Task[None]] = {}
        """Removals that are under way, by the sandbox's id."""
        self._failed_removals = FailedRemovals(provider)
        self._names: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Locks of snapshots that are being made or removed, by name."""
        self._life = LifeWatch(provider, self._note_end)
        memory = capacity(settings).memory_bytes
        self.warm = WarmSandboxes(provider, settings.warm, memory, self._held_bytes, self.prepare_image)
        self._host = socket.gethostname(), settings.host_ip

    async def start(self) -> None:
        if isinstance(self.provider, Driver):
            self.provider.context = replace(self.provider.context, channel=self.refusals)
            await self.provider.start()
        if self.provider.default_image:
            self.images.add(self.provider.default_image)
        self.images |= await images_of(self.provider)
        self.images.update(await self.snapshots())
        await self.warm.start()

    async def close(self) -> None:
        """Stop every sandbox, then the provider."""
        for starting in list(self._starting.values()):
            starting.cancel()
        await asyncio.gather(*self._starting.values(), return_exceptions=True)
        await self.warm.close()
        await self._life.close()
        held, self.held = list(self.held.values()), {}
        for done in await asyncio.gather(*(self._clear(each) for each in held), return_exceptions=True):
            if done is not None:
                log.warning("A sandbox was not removed: %s", done)
        await asyncio.gather(*self._clearing.values(), return_exceptions=True)
        await self._failed_removals.close()
        if isinstance(self.provider, Driver):
            await self.provider.close()

    def is_late(self, sent_for: str) -> bool:
        """Whether a request of the admin was sent before this worker registered again; a request without the header is
        never late."""
        return bool(sent_for) and (sent_for != self.worker_id if self.worker_id else sent_for == self.former_id)

    @property
    def ids(self) -> list[str]:
        """The sandboxes that run or are starting."""
        return list(dict.fromkeys([*self.held, *self._starting]))

    def list(self) -> list[HeldSandbox]:
        """Return the sandboxes that run, and those that ended by themselves or are not removed yet."""
        ended = dict.fromkeys([*self.ended, *self._failed_removals.ids])
        return [
            *(HeldSandbox(id=sandbox_id, alive=True) for sandbox_id in self.held),
            *(HeldSandbox(id=sandbox_id, alive=False) for sandbox_id in ended if sandbox_id not in self.held),
        ]

    def find(self, sandbox_id: str) -> Held:
        """Return a sandbox that runs. Raises `SandboxError`, which says what became of it, if there is none."""
        held = self.held.get(sandbox_id)
        if held is None:
            raise self.gone(sandbox_id)
        return held

    def gone(self, sandbox_id: str) -> SandboxError:
        """Return the error about a sandbox that does not run."""
        reason = self.ended.get(sandbox_id)
        if reason is not None:
            return SandboxError(f"The sandbox {sandbox_id} is gone: {reason.rstrip('.')}. Start another one.")
        where = f"the worker {self.settings.name}"
        return SandboxError(f"The sandbox {sandbox_id} does not run on {where}; start another one.")

    async def create(self, request: CreateSandbox) -> SandboxCreated:
        """Start a sandbox; the same request again returns the same sandbox. Raises `ConfigError` (another spec has this
        id, or the spec cannot be met) and `SandboxError`. If the caller gives up, the start goes on."""
        held = self.held.get(request.id)
        if request.keeps_files and not issubclass(self.provider.sandbox_type, Snapshots):
            raise RockError(f"Its files could not be kept: {lacks(self.provider, Snapshots)}")
        if held is None:
            starting = self._starting.get(request.id)
            if starting is None:
                starting = self._starting[request.id] = asyncio.create_task(self._start(request))
                starting.add_done_callback(lambda done: self._started(request.id, done))
            try:
                held = await asyncio.shield(starting)
            except asyncio.CancelledError:
                if starting.cancelled():
                    raise SandboxError(f"The sandbox {request.id} was removed while it started.") from None
                raise
        if held.request.spec != request.spec:
            raise ConfigError(f"A sandbox {request.id} runs already with another spec; stop it, or use another id.")
        return held.created

    async def _start(self, request: CreateSandbox) -> Held:
        began = time.monotonic()
        spec = request.spec.model_copy(update={"id": request.id})
        await self._finish_removal(request.id)
        try:
            sandbox = await self.warm.start_sandbox(spec)
        except (ConfigError, SandboxError) as error:
            if isinstance(error, ConfigError) and (image := spec.image) and await may_be_gone(self.provider, image):
                self.images.discard(image)  # a start that succeeds notes it again
            if request.registry_username is None:
                raise
            sentence = f"{error} The worker {self.settings.name} does not log in to registries: pull it on its machine."
            raise (ConfigError if isinstance(error, ConfigError) else SandboxError)(sentence) from error
        seconds = round(time.monotonic() - began, 6)
        name, address = self._host
        disk = sandbox.disk_mib if isinstance(sandbox, ResidentSandbox) else None
        created = SandboxCreated(id=request.id, host_name=name, host_ip=address, started_s=seconds, disk_mib=disk)
        rocklet = Rocklet(sandbox, self.settings.max_read_bytes)
        kept = request.model_copy(update={"registry_username": None, "registry_password": None})
        held = self.held[request.id] = Held(sandbox, rocklet, kept, created, SandboxPorts(sandbox), UsageMeter(sandbox))
        self.ended.pop(request.id, None)
        self.logs.begin(request.id, sandbox)
        if network_plan(spec):
            self.refusals.begin(sandbox.id)
        self._life.watch(request.id, sandbox)
        if spec.image is not None:
            self.images.add(spec.image)
        return held

    def _started(self, sandbox_id: str, starting: asyncio.Task[Held]) -> None:
        self._starting.pop(sandbox_id, None)
        if not starting.cancelled() and starting.exception() is not None:
            log.warning("The sandbox %s did not start: %s", sandbox_id, starting.exception())

    async def remove(self, sandbox_id: str) -> str:
        """Stop a sandbox, whether it runs, starts or has ended; returns its log. It is idempotent. Raises
        `SandboxError` if it could not be removed; it is then tried again, by itself and by whoever calls this again."""
        starting = self._starting.get(sandbox_id)
        if starting is not None:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        self.ended.pop(sandbox_id, None)
        held = self.held.pop(sandbox_id, None)
        if held is not None:
            self._life.unwatch(sandbox_id)
            self._begin_removal(held)
        await self._finish_removal(sandbox_id)
        return await self.logs.text(sandbox_id)

    def _held_bytes(self) -> int:
        return sum(memory_of(held.request.spec) for held in self.held.values())

    # --- images and snapshots

    async def prepare_image(self, image: str) -> float:
        """Bring an image to this machine, by a sandbox that is started from it and stopped; returns the seconds that
        this took. Raises `RockError`, `ConfigError` or `SandboxError`."""
        if "images" not in self.provider.capabilities:
            raise RockError(f"The sandboxes of the worker {self.settings.name} are not started from images.")
        began = time.monotonic()
        async with await self.provider.start_sandbox(SandboxSpec(image=image)):
            self.images.add(image)
        return round(time.monotonic() - began, 3)

    async def snapshot(self, sandbox_id: str, name: str) -> str:
        """Keep the files of a sandbox under a name; returns the provider's name for the snapshot. Raises `RockError` if
        the provider makes none, and `ConfigError` or `SandboxError`."""
        sandbox = self.find(sandbox_id).sandbox
        if not isinstance(sandbox, Snapshots) or not isinstance(self.provider, KeepsSnapshots):
            raise RockError(str(lacks(sandbox, Snapshots)))
        async with self._names.setdefault(name, asyncio.Lock()):
            taken = await sandbox.snapshot(name)
            self.images.add(taken)
        return taken

    async def snapshots(self) -> builtins.list[str]:
        """Return the snapshots that have a name: sandboxes can be started from them here."""
        names = await self.provider.snapshots() if isinstance(self.provider, KeepsSnapshots) else []
        return [name for name in names if not name.rpartition(":")[2].startswith("unnamed-")]

    async def remove_snapshot(self, name: str) -> None:
        """Remove one, by its name or by that for which it was asked; one that is being made is waited for. It is
        idempotent."""
        async with self._names.setdefault(name.rpartition(":")[2], asyncio.Lock()):
            for each in await self.snapshots():
                if isinstance(self.provider, KeepsSnapshots) and name in (each, each.rpartition(":")[2]):
                    await self.provider.remove_snapshot(each)
                    self.images.discard(each)
            self.images.discard(name)

    def _note_end(self, sandbox_id: str, sandbox: Sandbox, reason: str) -> None:
        """Forget a sandbox that has ended by itself, report it, and remove what is left of it."""
        held = self.held.get(sandbox_id)
        if held is None or held.sandbox is not sandbox:
            return
        del self.held[sandbox_id]
        self.ended[sandbox_id] = reason
        while len(self.ended) > MOST_ENDED:
            del self.ended[next(iter(self.ended))]
        log.info("The sandbox %s has ended: %s", sandbox_id, reason)
        self._begin_removal(held)
        if self.on_ended is not None:
            self.on_ended(sandbox_id, reason)

    def _begin_removal(self, held: Held) -> None:
        sandbox_id = held.request.id
        clearing = self._clearing[sandbox_id] = asyncio.create_task(self._clear(held))

        def cleared(done: asyncio.Task[None]) -> None:
            if self._clearing.get(sandbox_id) is done:
                del self._clearing[sandbox_id]
            if not done.cancelled() and done.exception() is not None:
                log.warning("%s", done.exception())

        clearing.add_done_callback(cleared)

    async def _finish_removal(self, sandbox_id: str) -> None:
        """Wait until what was there under an id is removed. Raises `SandboxError` if that fails."""
        clearing = self._clearing.get(sandbox_id)
        await (self._failed_removals.remove(sandbox_id) if clearing is None else asyncio.shield(clearing))

    async def _clear(self, held: Held) -> None:
        """Stop a sandbox and remove it. Raises `SandboxError` if that fails."""
        sandbox_id = held.request.id
        try:
            try:
                await held.ports.close()
            finally:
                await self.logs.stop(sandbox_id, held.sandbox)
        except Exception as error:
            self._failed_removals.add(sandbox_id, held.sandbox.id)
            raise SandboxError(f"The sandbox {sandbox_id} is not removed yet, and is tried again: {error}") from error
        finally:
            self.refusals.end(held.sandbox.id)
