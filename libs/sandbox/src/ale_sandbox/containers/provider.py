"""Sandboxes that are containers on this machine. What differs between container engines is in `Engine`.

1. A container's first process is the resident, which brings its own Python (`python_bundle.py`), so that an image needs
   only a shell. It connects to a Unix socket of this process; commands and files take this connection, which is some
   twenty times faster than an engine's API.
2. The container ends when that connection ends, and the engine then removes it: an owner that was killed leaves
   nothing.
3. A container has no network unless the spec asks for it, no new privileges, and only the capabilities with which the
   resident becomes the agent.
"""

from __future__ import annotations

import asyncio
import builtins
import secrets
import socket
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar

from ale.errors import SandboxError
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.sandbox import SandboxInfo, SandboxProvider, SandboxSpec
from ale.task import ImageBuild
from ale_sandbox.containers import image_snapshots, python_bundle
from ale_sandbox.containers.checkpoint_sandbox import CheckpointSandbox
from ale_sandbox.containers.checkpoints import PREFIX as CHECKPOINT
from ale_sandbox.containers.checkpoints import Checkpoint, CheckpointStore, check_same
from ale_sandbox.containers.config import ContainerConfig
from ale_sandbox.containers.engine import LABEL, ContainerPlan, Engine
from ale_sandbox.containers.image_builds import ImageBuilds
from ale_sandbox.containers.image_snapshots import OWNER, is_owned
from ale_sandbox.containers.images import DEFAULT_IMAGE, Images
from ale_sandbox.containers.planning import (
    CREATED,
    USER_LABEL,
    check_spec,
    make_plan,
    resident_constants,
    user_of,
)
from ale_sandbox.containers.sandbox import SOCKET, ContainerSandbox, accept
from ale_sandbox.host.channel import Channel
from ale_sandbox.host.memory_watch import MemoryWatch, groups_of, peer_pid
from ale_sandbox.host.owned_folders import new_base, reclaim_bases, remove_folder, state_folder
from ale_sandbox.host.threads import in_thread
from ale_sandbox.host.unix_socket import listener
from ale_sandbox.network.egress_gate import Gate
from ale_sandbox.sandboxes.attach_client import AttachedSandbox, attach, attach_by_id
from ale_sandbox.sandboxes.attach_server import AttachServer
from ale_sandbox.sandboxes.running_sandboxes import RunningSandboxes

BUNDLE = ".bundle"
"""The bundle's folder, which lies beside those of sandboxes; their names never begin with a dot."""


class ContainerProvider(Driver, SandboxProvider):
    """Starts containers. A subclass names its engine."""

    Config: ClassVar[type[PluginConfig]] = ContainerConfig
    capabilities: ClassVar[frozenset[str]] = frozenset(
        {
            "images",
            "builds",
            "users",
            "isolated",
            "limits",
            "network_none",
            "network_endpoint",
            "egress_policy",
            "network_full",
            "gpu",
        }
    )
    sandbox_type: ClassVar[type[ContainerSandbox]] = ContainerSandbox
    config: ContainerConfig

    def __init__(self, config: ContainerConfig, context: DriverContext) -> None:
        super().__init__(config, context)
        self.default_image = config.image
        self.engine = self.make_engine()
        self.images = Images(self.engine, config.pull)
        self.builds = ImageBuilds(self.engine, self.images)
        self.sandboxes: RunningSandboxes[ContainerSandbox] = RunningSandboxes()
        self.base: Path | None = None
        self.attach_server: AttachServer | None = None
        self.unnamed: set[str] = set()
        """Unnamed snapshots, which are removed when this provider closes."""
        self._can_checkpoint: frozenset[str] = frozenset()
        self._starts = asyncio.Semaphore(config.starts_at_once)
        self._connecting = asyncio.Lock()

    @classmethod
    def provides(cls, config: ContainerConfig) -> frozenset[str]:
        """Return the capabilities; an agent that runs as root is not separated from the tests' user."""
        return cls.capabilities - ({"users"} if config.user == "root" else set())

    @cached_property
    def checkpoints(self) -> CheckpointStore:
        """The checkpoints of this user; their folder is made at first use."""
        return CheckpointStore(state_folder(self.engine.name.lower()))

    @abstractmethod
    def make_engine(self) -> Engine:
        """The engine, not connected yet."""

    # --- lifetime

    async def start(self) -> None:
        """Connect, remove what ended owners left, and write the Python bundle."""
        await self.engine.open()
        await self._remove_ownerless()
        await image_snapshots.sweep(self.engine)
        self._can_checkpoint = await self.engine.can_checkpoint()
        base = await in_thread(self._prepare)
        self.attach_server = await AttachServer.open(base, self.sandboxes.get)
        self.capabilities = self.provides(self.config)  # type: ignore[misc]
        able = self.config.user in self._can_checkpoint
        self.sandbox_type = CheckpointSandbox if able else ContainerSandbox  # type: ignore[misc]

    def _prepare(self) -> Path:
        folder = state_folder(self.engine.name.lower())
        reclaim_bases(folder)
        self.checkpoints.sweep()
        self.base = base = new_base(folder)  # from now on `close` removes it
        (base / BUNDLE).mkdir()
        python_bundle.make_bundle(base / BUNDLE)
        return base

    async def close(self) -> None:
        """Stop all sandboxes and remove the unnamed snapshots."""
        try:
            await self.sandboxes.stop_all()
            for image in self.unnamed:
                with suppress(SandboxError):  # the next start removes it
                    await self.engine.remove_image(image)
        finally:
            self.unnamed.clear()
            self.checkpoints.close()
            await self.engine.close()
            attach_server, self.attach_server = self.attach_server, None
            if attach_server is not None:
                await attach_server.close()
            base, self.base = self.base, None
            if base is not None:
                await asyncio.to_thread(remove_folder, base)

    # --- sandboxes

    async def start_sandbox(self, spec: SandboxSpec) -> ContainerSandbox:
        base = self.base
        if base is None:
            raise SandboxError(f"The {self.engine.name} provider is not running; use it inside `async with provider:`.")
        check_spec(spec)
        name = spec.id or f"ale-{secrets.token_hex(6)}"
        image = spec.from_snapshot or spec.image or self.config.image or DEFAULT_IMAGE

        async def start() -> ContainerSandbox:
            async with self._starts:
                if image.startswith(CHECKPOINT):
                    checkpoint = self.checkpoints.find(image)
                    check_same(checkpoint, spec)
                    return await self._start_container(spec, name, DEFAULT_IMAGE, base, checkpoint)
                begin = partial(self._start_container, spec, name, image, base)
                return await self.images.start_from(image, begin, snapshot=spec.from_snapshot is not None)

        return await self.sandboxes.start(spec, start)

    async def _start_container(
        self, spec: SandboxSpec, name: str, image: str, base: Path, checkpoint: Checkpoint | None = None
    ) -> ContainerSandbox:
        control = base / name
        try:
            control.mkdir(mode=0o700)
        except FileExistsError:
            raise SandboxError(f"A sandbox {name} exists already; choose another id, or remove it.") from None
        mounts = [(str(base / BUNDLE), python_bundle.PLACE, False), (str(control), python_bundle.CONTROL, False)]
        gate = await Gate.open(spec, base / f".{name}.gate")
        if gate is not None:
            mounts.append((str(gate.folder), python_bundle.GATE, False))
        created = False
        sandbox: ContainerSandbox | None = None
        try:
            command = python_bundle.bundled_command(base / BUNDLE)
            plan = make_plan(
                spec=spec,
                config=self.config,
                engine=self.engine.name,
                name=name,
                image=image,
                command=command,
                mounts=mounts,
                run_labels=self.context.labels,
            )
            with listener(control / SOCKET) as waiting:
                creating = asyncio.ensure_future(self._create(plan, checkpoint))
                try:
                    process = await asyncio.shield(creating)
                except asyncio.CancelledError:
                    await asyncio.wait([creating])
                    created = creating.exception() is None
                    raise
                created = True
                channel, process = await self._connect_resident(name, waiting, process)
            (control / SOCKET).unlink()
            can_checkpoint = user_of(spec, self.config) in self._can_checkpoint
            sandbox = (CheckpointSandbox if can_checkpoint else ContainerSandbox)(
                spec=spec,
                name=name,
                channel=channel,
                engine=self.engine,
                resident=process,
                control=control,
                on_stopped=self.forget,
            )
            if isinstance(sandbox, CheckpointSandbox):
                sandbox.checkpoints = self.checkpoints
            sandbox.in_memory = bool(plan.in_memory)
            sandbox.disk_mib = plan.resources.disk_mib if plan.in_memory else None
            sandbox.guard(gate, self.context)
            self.sandboxes[name] = sandbox
            image_env = {} if checkpoint is not None else await self.images.env(image)
            sandbox.constants = partial(resident_constants, config=self.config, name=name, image_env=image_env)
            await sandbox.set_up(sandbox.constants(spec), spec.files)
            return sandbox
        except BaseException:
            if sandbox is not None:
                await sandbox.stop()
            else:
                if created:
                    await asyncio.shield(asyncio.ensure_future(self.engine.remove(name)))
                if gate is not None:
                    await gate.close()
                remove_folder(control)
            raise

    async def _create(self, plan: ContainerPlan, checkpoint: Checkpoint | None) -> int | None:
        """Create and start the container. After a restore, return the id of the resident among its processes."""
        if checkpoint is not None:
            return await self.engine.restore(plan, checkpoint.archive)
        await self.engine.create(plan)
        try:
            await self.engine.start(plan.name)
        except SandboxError:
            await self.engine.remove(plan.name)
            raise
        return None

    async def _connect_resident(self, name: str, waiting: socket.socket, process: int | None) -> tuple[Channel, int]:
        """Wait for the resident's connection; return it and the resident's process id."""
        try:
            async with asyncio.timeout(self.config.start_timeout_s):
                sock = await accept(waiting, process)
        except TimeoutError:
            output = (await self.engine.logs(name)).strip()
            raise SandboxError(
                f"The container {name} was not ready within {self.config.start_timeout_s:g} s."
                f"{f' Its output: {output[-1000:]}' if output else ''}"
            ) from None
        process = peer_pid(sock)
        memory = MemoryWatch(groups_of(process))
        channel = await Channel.open(name, sock)
        channel.memory = memory
        return channel, process

    def forget(self, sandbox: ContainerSandbox) -> None:
        """Forget a stopped sandbox; its unnamed snapshots stay until the provider closes."""
        self.sandboxes.pop(sandbox.id, None)
        self.unnamed |= sandbox.own_snapshots

    # --- sandboxes of other processes

    async def attach(self, sandbox_id: str) -> AttachedSandbox:
        folder = state_folder(self.engine.name.lower())
        there = await attach_by_id(folder, sandbox_id)  # does not need the engine
        if there is not None:
            return there
        async with self._connected():
            found = [each for each in await self.engine.containers() if each.name == sandbox_id]
        if not found:
            raise SandboxError(
                f"There is no {self.engine.name} sandbox {sandbox_id}; `ale sandbox ls` lists the existing ones."
            )
        return await attach(folder, found[0].labels.get(OWNER, ""), sandbox_id)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[None]:
        """Hold a connection to the engine, even if the provider was not started."""
        if self.base is not None:
            yield
            return
        async with self._connecting:
            await self.engine.open()
            try:
                yield
            finally:
                await self.engine.close()

    async def _remove_ownerless(self) -> builtins.list[str]:
        gone: builtins.list[str] = []
        for found in await self.engine.containers():
            if not is_owned(found.labels):
                with suppress(SandboxError):  # another process may be removing it, too; the next start tries again
                    await self.engine.remove(found.name)
                    gone.append(found.name)
        return gone

    async def prune(self) -> builtins.list[str]:
        async with self._connected():
            gone = await self._remove_ownerless()
            await image_snapshots.sweep(self.engine)
        self.checkpoints.sweep()
        return gone

    async def snapshots(self) -> builtins.list[str]:
        async with self._connected():
            return [*self.checkpoints.names(), *await image_snapshots.names(self.engine)]

    async def remove_snapshot(self, name: str) -> None:
        if name.startswith(CHECKPOINT):
            return self.checkpoints.remove(name)
        async with self._connected():
            await image_snapshots.remove(self.engine, name)
        self.images.forget(name)

    async def image_from(self, build: ImageBuild) -> str:
        """Build the image of a task, unless an image of the same content is there."""
        async with self._connected():
            return await self.builds.image_from(build)

    async def build_image(self, name: str | None = None, *, python: bool = False) -> str:
        """Build an image of this machine's programs."""
        async with self._connected():
            return await self.images.build(name, python)

    async def list(self) -> builtins.list[SandboxInfo]:
        async with self._connected():
            containers = await self.engine.containers()
        return [
            SandboxInfo(
                found.labels[LABEL],
                # A container's labels cannot change, but a reset gives a sandbox of this process new ones.
                self.sandboxes[found.name].labels
                if found.name in self.sandboxes
                else {
                    key.removeprefix(USER_LABEL): value
                    for key, value in found.labels.items()
                    if key.startswith(USER_LABEL)
                },
                float(found.labels.get(CREATED, "0")),
                found.running,
            )
            for found in containers
        ]

    async def remove(self, sandbox_id: str) -> None:
        if sandbox_id in self.sandboxes:
            await self.sandboxes[sandbox_id].stop()
            return
        async with self._connected():
            if any(found.name == sandbox_id for found in await self.engine.containers()):
                await self.engine.remove(sandbox_id)
