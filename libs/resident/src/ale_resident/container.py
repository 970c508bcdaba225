"""Sandboxes that are containers of an engine on this machine. What differs between engines is an `Engine`.

1. A container's first process is the resident, brought along with a Python of its own (`bundle.py`), so that an image needs
   nothing but a shell. It connects to a Unix socket that this process listens on; commands and files go that way, some
   twenty times faster than through an engine's API.
2. The container ends when that connection does, and the engine removes it then: an owner that was killed leaves nothing.
3. No network unless it was asked for, no new privileges, no capability but those with which the resident becomes the agent.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import os
import re
import secrets
import socket
import time
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from ale.errors import ConfigError, SandboxError
from ale.specs.driver import DriverContext, PluginConfig
from ale.specs.sandbox import Resources, SandboxInfo, SandboxProvider, SandboxSpec
from ale_resident import bundle, image_snapshots
from ale_resident.attached import AttachedSandbox, attach, reached
from ale_resident.channel import Channel
from ale_resident.checkpoints import PREFIX as CHECKPOINT
from ale_resident.checkpoints import Checkpoint, Checkpoints, check_same
from ale_resident.container_sandbox import SOCKET, ContainerSandbox, accepted
from ale_resident.door import Door
from ale_resident.egress import Gate, check_policy, network_plan
from ale_resident.engine import LABEL, Engine, Plan
from ale_resident.image import BASE, PYTHON, TAG, image_tar
from ale_resident.image_snapshots import OWNER, is_owned
from ale_resident.listener import listener
from ale_resident.memory import MemoryWatch, groups_of, peer
from ale_resident.owner import new_base, reclaim_bases, remove_folder, state_folder, this_process
from ale_resident.running import Running

log = logging.getLogger("ale.sandbox.container")

CREATED, USER_LABEL = "ale.created", "ale.label."
DEFAULT_IMAGE = f"{BASE}:{TAG}"
NETWORK_CAPS = ("NET_ADMIN", "NET_BIND_SERVICE", "NET_RAW")
"""For the network `allow`: the resident sets it up with them and lets them go before anything else runs."""
RESIDENT_CAPS = ("CHOWN", "DAC_OVERRIDE", "KILL", "SETGID", "SETUID")
ROOT_CAPS = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT")
"""What an agent that is root may have: enough for package managers, nothing that reaches beyond the container."""
BUNDLE = ".bundle"
"""Beside the folders of sandboxes, none of whose names begins with a dot."""
OPEN_FILES = 4096
PER_USER = "RLIMIT_SIGPENDING=4096 RLIMIT_MSGQUEUE=614400"
"""The kernel counts queued signals and message queues for a user of the whole machine: a good part shall be left for others."""
IPV6_OFF, TIME_WAIT = "net.ipv6.conf.all.disable_ipv6", "net.ipv4.tcp_max_tw_buckets"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class ContainerConfig(PluginConfig):
    """Settings that container providers share."""

    image: str | None = Field(
        None, description="Image of sandboxes that ask for none; null: a small one, made of this machine's programs."
    )
    user: str = Field(
        "agent",
        pattern="^(agent|root)$",
        description="Who commands run as: agent, an unprivileged user; or root, for images whose files belong to root.",
    )
    shell: str | None = Field(None, description="Shell of the commands; null: bash where the image has it, else sh.")
    defaults: Resources = Field(
        Resources(memory_mib=2048, pids=512), description="Limits where a sandbox's own are null."
    )
    starts_at_once: int = Field(4, gt=0, description="Containers that are started at the same time; more wait.")
    start_timeout_s: float = Field(60.0, gt=0, description="Seconds in which a container must be ready.")
    pull: bool = Field(True, description="Pull images that are missing.")


class ContainerProvider(SandboxProvider):
    """Starts containers. Made whole by a class that names its engine."""

    Config: ClassVar[type[PluginConfig]] = ContainerConfig
    capabilities: ClassVar[frozenset[str]] = frozenset({
        "images", "users", "isolated", "limits", "network_none", "network_endpoint", "egress_policy", "network_full",
        "snapshot", "gpu", "attach", "reset", "trees", "shell", "streaming",
    })  # fmt: skip
    config: ContainerConfig

    def __init__(self, config: ContainerConfig, context: DriverContext) -> None:
        super().__init__(config, context)
        self.engine = self.make_engine()
        self.sandboxes: Running[ContainerSandbox] = Running()
        self.base: Path | None = None
        self.door: Door | None = None
        self.unnamed: set[str] = set()
        """Images that go when this provider is closed."""
        self._can_checkpoint: frozenset[str] = frozenset()
        self._starts = asyncio.Semaphore(config.starts_at_once)
        self._images: set[str] = set()
        """Those that are known to be there."""
        self._getting_image = asyncio.Lock()
        self._connecting = asyncio.Lock()

    @classmethod
    def provides(cls, config: ContainerConfig) -> frozenset[str]:
        """An agent that is root is not told apart from the tests' user."""
        return cls.capabilities - ({"users"} if config.user == "root" else set())

    @cached_property
    def checkpoints(self) -> Checkpoints:
        """Snapshots with processes, of this user; the folder is made where it is asked for first."""
        return Checkpoints(state_folder(self.engine.name.lower()))

    @abstractmethod
    def make_engine(self) -> Engine:
        """The engine, not connected yet."""

    # --- lifetime

    async def start(self) -> None:
        """Connect, remove what dead owners left, write the bundle."""
        await self.engine.open()
        await self._remove_ownerless()
        await image_snapshots.sweep(self.engine)
        can_checkpoint = asyncio.ensure_future(self.engine.can_checkpoint())
        self.base = await asyncio.to_thread(self._prepare)
        self.door = await Door.opened(self.base, self.sandboxes.get)
        self._can_checkpoint = await can_checkpoint
        cannot = set() if self.config.user in self._can_checkpoint else {"checkpoint"}
        self.capabilities = self.provides(self.config) - cannot  # type: ignore[misc]

    def _prepare(self) -> Path:
        folder = state_folder(self.engine.name.lower())
        reclaim_bases(folder)
        self.checkpoints.sweep()
        base = new_base(folder)
        (base / BUNDLE).mkdir()
        bundle.make_bundle(base / BUNDLE)
        return base

    async def close(self) -> None:
        """Stop all sandboxes, remove the snapshots that nobody gave a name."""
        try:
            await asyncio.gather(*(sandbox.stop() for sandbox in list(self.sandboxes.values())))
            for image in self.unnamed:
                await self.engine.remove_image(image)
        finally:
            self.unnamed.clear()
            self.checkpoints.close()
            await self.engine.close()
            door, self.door = self.door, None
            if door is not None:
                await door.close()
            base, self.base = self.base, None
            if base is not None:
                await asyncio.to_thread(remove_folder, base)

    # --- sandboxes

    async def start_sandbox(self, spec: SandboxSpec) -> ContainerSandbox:
        base = self.base
        if base is None:
            raise SandboxError(f"The {self.engine.name} provider is not running; use it inside `async with provider:`.")
        self.check(spec)
        name = spec.id or f"ale-{secrets.token_hex(6)}"
        image = spec.from_snapshot or spec.image or self.config.image or DEFAULT_IMAGE

        async def start() -> ContainerSandbox:
            async with self._starts:
                if image.startswith(CHECKPOINT):
                    checkpoint = self.checkpoints.find(image)
                    check_same(checkpoint, spec)
                    return await self._started(spec, name, DEFAULT_IMAGE, base, checkpoint)
                await self.have_image(image, snapshot=spec.from_snapshot is not None)
                return await self._started(spec, name, image, base)

        return await self.sandboxes.start(spec, start)

    async def _started(
        self, spec: SandboxSpec, name: str, image: str, base: Path, checkpoint: Checkpoint | None = None
    ) -> ContainerSandbox:
        control, limits = base / name, self.resources(spec)
        try:
            control.mkdir(mode=0o700)
        except FileExistsError:
            raise SandboxError(f"A sandbox {name} is there already; choose another id, or remove it.") from None
        mounts = [(str(base / BUNDLE), bundle.PLACE, False), (str(control), bundle.CONTROL, False)]
        caps: tuple[str, ...] = RESIDENT_CAPS if self.user(spec) == "agent" else ROOT_CAPS
        gate = await Gate.opened(spec, base / f".{name}.gate")
        if gate is not None:
            mounts.append((str(gate.folder), bundle.GATE, False))
            caps += NETWORK_CAPS if spec.network == "allow" else ()
        plan = Plan(
            name, image, bundle.bundled_command(base / BUNDLE), self.labels(spec, name), tuple(mounts),
            spec.network == "full", limits, caps, self.in_memory(spec, image, limits),
            sysctls(spec),
        )  # fmt: skip
        created = False
        sandbox: ContainerSandbox | None = None
        try:
            with listener(control / SOCKET) as waiting:
                creating = asyncio.ensure_future(self._create(plan, checkpoint))
                try:
                    process = await asyncio.shield(creating)
                except asyncio.CancelledError:
                    await asyncio.wait([creating])
                    created = creating.exception() is None
                    raise
                created = True
                channel, process = await self._connection(name, waiting, process)
            (control / SOCKET).unlink()
            sandbox = ContainerSandbox(spec, name, channel, self.engine, process, control, self.forget)
            sandbox.in_memory = bool(plan.in_memory)
            sandbox.checkpoints = self.checkpoints if self.user(spec) in self._can_checkpoint else None
            sandbox.guard(gate, self.context)
            self.sandboxes[name] = sandbox
            sandbox.constants = partial(self.constants, name=name)
            await sandbox.set_up(self.constants(spec, name), spec.files)
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

    async def _create(self, plan: Plan, checkpoint: Checkpoint | None) -> int | None:
        """Create the container and start it; the number of its first process where others run beside that at once."""
        if checkpoint is not None:
            return await self.engine.restore(plan, checkpoint.archive)
        await self.engine.create(plan)
        try:
            await self.engine.start(plan.name)
        except SandboxError:
            await self.engine.remove(plan.name)
            raise
        return None

    async def _connection(self, name: str, waiting: socket.socket, process: int | None) -> tuple[Channel, int]:
        """The connection of the resident, once it stands, and the resident's number."""
        try:
            async with asyncio.timeout(self.config.start_timeout_s):
                sock = await accepted(waiting, process)
        except TimeoutError:
            said = (await self.engine.logs(name)).strip()
            raise SandboxError(
                f"The container {name} was not ready within {self.config.start_timeout_s:g} s."
                f"{f' It said: {said[-1000:]}' if said else ''}"
            ) from None
        process = peer(sock)
        memory = MemoryWatch(groups_of(process))
        channel = await Channel.open(name, sock)
        channel.memory = memory
        return channel, process

    async def have_image(self, image: str, *, snapshot: bool = False) -> None:
        """See that an image is there, once. Raises `ConfigError` with what to do where it is not."""
        if image in self._images:
            return
        async with self._getting_image:  # of several starts, one makes or pulls it
            if image not in self._images:
                await self._get_image(image, snapshot)
                self._images.add(image)

    async def _get_image(self, image: str, snapshot: bool) -> None:
        if await self.engine.has_image(image):
            return
        if image == DEFAULT_IMAGE:
            log.info("Making the image %s of this machine's programs.", image)
            await self.engine.import_image(image, await asyncio.to_thread(image_tar, False))
            return
        if snapshot:
            raise ConfigError(f"There is no snapshot {image} in {self.engine.name}; it was removed, or made elsewhere.")
        if self.config.pull:
            try:
                await self.engine.pull(image)
                if await self.engine.has_image(image):
                    return
                raise SandboxError("the engine tried, and has none.")
            except SandboxError as error:
                raise ConfigError(
                    f"{self.engine.name} has no image {image}, and it cannot be pulled: {error} {self.how_to_get(image)}"
                ) from error
        raise ConfigError(f"{self.engine.name} has no image {image}. {self.how_to_get(image)}")

    def how_to_get(self, image: str) -> str:
        """What a user can do about an image that is not there."""
        tool = self.engine.name.lower()
        return (
            f"Build it (`{tool} build -t {image} FOLDER`), import it (`{tool} load -i FILE`), or leave the image out: the "
            f"default one, {DEFAULT_IMAGE}, is made of this machine's programs (`ale sandbox image build`)."
        )

    def check(self, spec: SandboxSpec) -> None:
        """Refuse what cannot be given. Raises `ConfigError`."""
        check_policy(spec)
        if spec.id is not None and not NAME.fullmatch(spec.id):
            raise ConfigError(f"A sandbox cannot be named {spec.id!r}; use up to 64 letters, digits, '-', '_' and '.'.")
        if not spec.workdir.startswith("/") or ".." in spec.workdir.split("/") or spec.workdir.strip("/") == "":
            raise ConfigError(f"The sandbox's workdir {spec.workdir!r} must be an absolute path, such as /workspace.")

    def user(self, spec: SandboxSpec) -> str:
        """Who the agent is: the spec's choice, or the provider's."""
        return spec.user or self.config.user

    def resources(self, spec: SandboxSpec) -> Resources:
        """The limits of a sandbox, the provider's own where it names none."""
        own = {name: value for name, value in spec.resources if value is not None}
        return Resources(**{**self.config.defaults.model_dump(), **own})

    def in_memory(self, spec: SandboxSpec, image: str, limits: Resources) -> dict[str, str]:
        """The folders that can be written to, and their modes (those that they have on a layer), where the disk is limited: engines seldom can limit a container's layer."""
        if limits.disk_mib is None:
            return {}
        if image != DEFAULT_IMAGE:
            raise ConfigError(
                f"The files of the image {image} lie in a layer that {self.engine.name} does not limit, so disk_mib "
                f"{limits.disk_mib} cannot be met; set needs.resources.disk_mib to null."
            )
        home = "/home/agent" if self.user(spec) == "agent" else "/root"
        return {spec.workdir: "755", home: "755", "/tmp": "1777", "/var/tmp": "1777"}

    def labels(self, spec: SandboxSpec, name: str) -> dict[str, str]:
        """What the engine keeps with a container: what it is, whose it is, and the run's own labels."""
        own = {f"{USER_LABEL}{key}": value for key, value in {**self.context.labels, **spec.labels}.items()}
        return {LABEL: name, OWNER: this_process(), CREATED: repr(time.time()), **own}

    def constants(self, spec: SandboxSpec, name: str) -> list[bytes]:
        """What the resident has to know (see `Resident.set_up`)."""
        several = self.user(spec) == "agent"
        env = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/home/agent" if several else "/root", "TMPDIR": "/tmp", "LANG": "C.UTF-8",
            "USER": "agent" if several else "root", **spec.env, "ALE_SANDBOX": name,
        }  # fmt: skip
        network = "\n".join(network_plan(spec))
        limits = f"RLIMIT_CORE=0 {PER_USER} RLIMIT_NOFILE={self.resources(spec).open_files or OPEN_FILES}"
        fields = ["users" if several else "root", spec.workdir, self.config.shell or "", limits, "make", network]
        return [os.fsencode(text) for text in (*fields, *(f"{key}={value}" for key, value in env.items()))]

    def forget(self, sandbox: ContainerSandbox) -> None:
        """A sandbox has been stopped; its snapshots are there until the provider closes."""
        self.sandboxes.pop(sandbox.id, None)
        self.unnamed |= sandbox.own_snapshots

    # --- what others started

    async def attach(self, sandbox_id: str) -> AttachedSandbox:
        folder = state_folder(self.engine.name.lower())
        there = await reached(folder, sandbox_id)  # the engine is not needed for it
        if there is not None:
            return there
        async with self._connected():
            found = [each for each in await self.engine.containers() if each.name == sandbox_id]
        if not found:
            raise SandboxError(
                f"There is no {self.engine.name} sandbox {sandbox_id}; `ale sandbox ls` lists those that there are."
            )
        return await attach(folder, found[0].labels.get(OWNER, ""), sandbox_id)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[None]:
        """The engine's connection, also where the provider was not started."""
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
        gone = [found.name for found in await self.engine.containers() if not is_owned(found.labels)]
        for name in gone:
            await self.engine.remove(name)
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
        self._images.discard(name)

    async def build_image(self, name: str | None = None, *, python: bool = False) -> str:
        """An image of this machine's programs; `ale-base:1`, or `ale-python:1` with a Python, where it has no other name."""
        name = name or f"{PYTHON if python else BASE}:{TAG}"
        tar = await asyncio.to_thread(image_tar, python)
        async with self._connected():
            await self.engine.import_image(name, tar)
        return name

    async def list(self) -> builtins.list[SandboxInfo]:
        async with self._connected():
            containers = await self.engine.containers()
        return [
            SandboxInfo(
                found.labels[LABEL],
                # Those of a container cannot be changed; a sandbox of this process that was reset has others.
                self.sandboxes[found.name].labels if found.name in self.sandboxes else
                {key.removeprefix(USER_LABEL): value for key, value in found.labels.items() if key.startswith(USER_LABEL)},
                float(found.labels.get(CREATED, "0")), found.running,
            )
            for found in containers
        ]  # fmt: skip

    async def remove(self, sandbox_id: str) -> None:
        if sandbox_id in self.sandboxes:
            await self.sandboxes[sandbox_id].stop()
            return
        async with self._connected():
            if any(found.name == sandbox_id for found in await self.engine.containers()):
                await self.engine.remove(sandbox_id)


def sysctls(spec: SandboxSpec) -> dict[str, str]:
    """Kernel settings of a container's network, where that has no way out but the gate."""
    settings: dict[str, str] = {}
    if spec.network != "full":
        # Connections within it need not be remembered after their end, and would keep it from being as new for a minute.
        settings[TIME_WAIT] = "0"
    if spec.network == "allow" and Path("/proc/sys/net/ipv6").is_dir():
        # Engines turn IPv6 off where there is no network; then what is tried by it could not be seen.
        settings[IPV6_OFF] = "0"
    return settings
