"""The provider of local sandboxes: chooses how they are isolated, starts them, lists and removes them.

If bubblewrap works, a sandbox is a set of Linux namespaces (`bubblewrap.py`); otherwise it is a plain subprocess in a
folder of its own. In both, one resident process (`ale_sandbox.resident`) runs the commands and moves the files.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import os
import secrets
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

from ale.errors import ConfigError, SandboxError
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.sandbox import Resources, SandboxInfo, SandboxProvider, SandboxSpec
from ale_local import base_folder, bubblewrap, cgroups, sandbox_records, snapshots
from ale_local.config import LocalSandboxConfig
from ale_local.isolated_sandbox import IsolatedSandbox
from ale_local.isolation import find_isolation
from ale_local.launcher import Fork, Launcher, open_process
from ale_local.resident_setup import resident_constants
from ale_local.sandbox import LocalSandbox
from ale_local.snapshot_store import HeldSnapshot, SnapshotStore
from ale_local.spec_checks import INSTALL, check_spec
from ale_sandbox.host import owned_folders as owner
from ale_sandbox.host.channel import Channel
from ale_sandbox.host.memory_watch import MemoryWatch
from ale_sandbox.host.resident_program import resident_command
from ale_sandbox.host.threads import in_thread
from ale_sandbox.network.egress_gate import Gate
from ale_sandbox.resident import seccomp
from ale_sandbox.sandboxes.attach_client import AttachedSandbox, attach
from ale_sandbox.sandboxes.attach_server import AttachServer
from ale_sandbox.sandboxes.running_sandboxes import RunningSandboxes

log = logging.getLogger("ale.sandbox.local")


class LocalSandboxProvider(Driver, SandboxProvider):
    """Provides sandboxes on this machine, without a daemon."""

    api_version = ">=1.0,<1.2"
    Config: ClassVar[type[PluginConfig]] = LocalSandboxConfig
    capabilities: ClassVar[frozenset[str]] = frozenset(
        {
            "users",
            "isolated",
            "limits",
            "network_none",
            "network_endpoint",
            "egress_policy",
            "network_full",
            "fork",
        }
    )
    sandbox_type: ClassVar[type[LocalSandbox]] = IsolatedSandbox
    config: LocalSandboxConfig

    def __init__(self, config: LocalSandboxConfig, context: DriverContext) -> None:
        super().__init__(config, context)
        self.sandboxes: RunningSandboxes[LocalSandbox] = RunningSandboxes()
        self.groups: dict[str, Path] = {}
        self.folder: Path | None = None
        self.base: Path | None = None
        self.attach_server: AttachServer | None = None
        self.wrap: bubblewrap.Bubblewrap | None = None
        self.launcher: Launcher | None = None
        self.layers: SnapshotStore | None = None
        self.python = ""

    @classmethod
    def provides(cls, config: LocalSandboxConfig) -> frozenset[str]:
        """Return the capabilities; without isolation only the host's network."""
        if config.isolation != "none":
            return cls.capabilities - {"network_full"}
        return frozenset({"network_full"})

    @classmethod
    def sandbox_type_with(cls, config: LocalSandboxConfig) -> type[LocalSandbox]:
        return LocalSandbox if config.isolation == "none" else IsolatedSandbox

    # --- lifetime

    async def start(self) -> None:
        await in_thread(self.prepare)
        assert self.base is not None
        self.attach_server = await AttachServer.open(self.base, self.sandboxes.get)

    def prepare(self) -> None:
        """Remove what ended owners left, make the base folder, choose the isolation. Blocks for some 50 ms."""
        self.folder = owner.state_folder("local")
        gone = sandbox_records.reclaim(self.folder)
        self.layers = SnapshotStore(self.folder)
        self.layers.reclaim()
        if gone:
            log.info("Removed %d sandboxes of processes that have ended.", len(gone))
        for folder in self.config.folders:
            if (fault := bubblewrap.folder_fault(folder)) is not None:
                raise ConfigError(f"sandbox.folders: {folder!r} {fault}.")
        self.base = base_folder.make_base(self.folder)
        self.python = base_folder.interpreter(self.config.host_python) or ""
        self.groups = cgroups.parents()
        if self.config.isolation != "none":
            found, fault = find_isolation(self.base, self.python, self.config)
            if found is not None:
                self.wrap, self.launcher = found
            elif self.config.isolation == "bubblewrap":
                raise ConfigError(
                    f"sandbox.isolation is bubblewrap, which does not work here ({fault}): {INSTALL}, "
                    "or set sandbox.isolation to none to run without isolation."
                )
        if self.launcher is None:
            self.launcher = Launcher(None)
        if self.wrap is None:
            self.python = os.path.realpath(sys.executable)
            mend = f"{INSTALL}; to do without, set sandbox.isolation to none and needs.network to full"
            log.warning(
                "The local sandboxes isolate NOTHING: commands run as this user, with its files and its network. "
                "For isolation: %s.",
                "leave sandbox.isolation out" if self.config.isolation == "none" else mend,
            )
        self.sandbox_type = LocalSandbox if self.wrap is None else IsolatedSandbox  # type: ignore[misc]
        self.capabilities = self.provided_here(self.launcher.can_fork(self.base))  # type: ignore[misc]

    def provided_here(self, can_fork: bool) -> frozenset[str]:
        """Return the capabilities on this machine, which may be fewer than the class's."""
        if self.wrap is None:
            return frozenset({"network_full"})
        lacking = {
            "users": self.wrap.namespaces is None,
            "fork": not can_fork,
            "limits": not {"memory", "pids"} <= self.groups.keys(),
        }
        return self.provides(self.config) - {word for word, lacks in lacking.items() if lacks}

    async def close(self) -> None:
        await self.sandboxes.stop_all()
        attach_server, self.attach_server = self.attach_server, None
        if attach_server is not None:
            await attach_server.close()
        if self.launcher is not None:
            self.launcher.close()
            self.launcher = None
        if self.wrap is not None and self.wrap.namespaces is not None:
            self.wrap.namespaces.close()
        self.wrap = None
        if self.layers is not None:
            await in_thread(self.layers.close)
            self.layers = None
        if self.base is not None:
            await asyncio.to_thread(owner.remove_folder, self.base)
            self.base = None

    # --- sandboxes

    async def start_sandbox(self, spec: SandboxSpec) -> LocalSandbox:
        if self.folder is None or self.base is None:
            raise SandboxError("The local sandbox provider is not running; use it inside `async with provider:`.")
        limited = "limits" in self.capabilities
        resources = check_spec(spec, self.config, isolated=self.wrap is not None, limited=limited)
        return await self.sandboxes.start(spec, lambda: self.start_new(spec, resources))

    async def start_new(self, spec: SandboxSpec, resources: Resources) -> LocalSandbox:
        """Start a sandbox whose id is not in use."""
        assert self.folder is not None
        assert self.base is not None
        sandbox_id = spec.id or f"ale-{secrets.token_hex(6)}"
        record = sandbox_records.Record(
            id=sandbox_id,
            pid=0,
            start_time=0,
            owner_pid=os.getpid(),
            owner_start_time=owner.start_time(os.getpid()),
            created_at=time.time(),
            labels={**self.context.labels, **spec.labels},
            cgroups=sorted({str(path / sandbox_id) for path in self.groups.values()}),
            folder=None if self.wrap is not None else str(self.folder / sandbox_id),
        )
        sandbox_records.claim(self.folder, record, self.groups, resources)
        process: subprocess.Popen[bytes] | None = None
        sandbox: LocalSandbox | None = None
        gate: Gate | None = None
        held: HeldSnapshot | None = None
        try:
            if spec.from_snapshot is not None:
                assert self.layers is not None
                held = self.layers.hold_for(spec.from_snapshot, "fork" in self.capabilities, self.config.uid_base)
            if self.wrap is not None:
                gate = await Gate.open(spec, self.base / f".{sandbox_id}.gate")
            ours, theirs = socket.socketpair()
            with theirs, os.fdopen(os.memfd_create("stderr"), "w+b") as stderr:
                try:
                    process = await self.launch(
                        spec=spec,
                        record=record,
                        resources=resources,
                        control=theirs.fileno(),
                        stderr=stderr.fileno(),
                        gate=gate,
                        held=held,
                    )
                except BaseException as error:
                    ours.close()
                    if isinstance(error, OSError):
                        raise SandboxError(f"The sandbox {sandbox_id} could not be started: {error}.") from error
                    raise
                theirs.close()
                record = sandbox_records.note_process(self.folder, record, process.pid)
                channel = await Channel.open(sandbox_id, ours)
                channel.memory = MemoryWatch(map(Path, record.cgroups))
                constants = partial(
                    resident_constants,
                    config=self.config,
                    record=record,
                    resources=resources,
                    mode="plain" if self.wrap is None else self.wrap.mode,
                    groups=self.groups,
                )
                sandbox = (LocalSandbox if self.wrap is None else IsolatedSandbox)(
                    spec=spec,
                    record=record,
                    folder=self.folder,
                    process=process,
                    channel=channel,
                    on_stopped=self.forget,
                )
                if isinstance(sandbox, IsolatedSandbox):
                    sandbox.snapshot_maker = self.snapshot_maker(spec, resources, held)
                    sandbox.constants, sandbox.held = constants, held
                    sandbox.disk_mib = resources.disk_mib
                sandbox.guard(gate, self.context)
                sandbox.keep_stderr(stderr.fileno())
                self.sandboxes[sandbox_id] = sandbox
                try:
                    await sandbox.set_up(constants(spec), {} if held else spec.files)
                    if held is not None:
                        await snapshots.restore(held, channel)
                        await sandbox.upload(spec.files)
                    if self.wrap is not None:
                        sandbox.record = sandbox_records.note_process(
                            self.folder, record, sandbox_records.resident_pid(process.pid)
                        )
                except SandboxError as error:
                    stderr.seek(0)
                    output = stderr.read(2000).decode("utf-8", "replace").strip()
                    raise SandboxError(f"{error} Its output: {output}" if output else str(error)) from error
            return sandbox
        except BaseException:
            if sandbox is not None:
                await sandbox.stop()
            else:
                if process is not None:
                    process.kill()
                    process.wait()
                if gate is not None:
                    await gate.close()
                if held is not None:
                    held.close()
                sandbox_records.erase(self.folder, record)
            raise

    def places(self, spec: SandboxSpec, held: HeldSnapshot | None) -> tuple[str, ...]:
        """List the writable places that a sandbox's snapshots hold, those of its own snapshot first."""
        own = self.wrap.writable(spec.workdir) if self.wrap is not None else ()
        return own if held is None else tuple(dict.fromkeys((*held.snapshot.places, *own)))

    def snapshot_maker(
        self, spec: SandboxSpec, resources: Resources, held: HeldSnapshot | None
    ) -> snapshots.SnapshotMaker:
        """Return the object that makes a sandbox's snapshots."""
        assert self.layers is not None
        places = self.places(spec, held)
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        size = (memory if resources.disk_mib is None else resources.disk_mib << 20) * len(places)
        if held is not None:
            size += held.snapshot.bytes
        form: Literal["layer", "archive"] = "layer" if "fork" in self.capabilities else "archive"
        return snapshots.SnapshotMaker(self.layers, places, form, self.config.uid_base, size)

    async def launch(
        self,
        spec: SandboxSpec,
        record: sandbox_records.Record,
        resources: Resources,
        control: int,
        stderr: int,
        gate: Gate | None,
        held: HeldSnapshot | None,
    ) -> subprocess.Popen[bytes]:
        """Start a sandbox's process."""
        assert self.base is not None
        assert self.launcher is not None
        fork = None
        fds: tuple[int, ...] = (control,)
        filter_fd = None
        if self.wrap is not None:
            filter_fd = seccomp.open_program()
            network = [] if gate is None else self.wrap.gate(gate.folder, spec.network == "allow")
            if held is not None and held.snapshot.form == "layer":
                fork = Fork(held.path, len(held.snapshot.places), resources.disk_mib)
            command = self.wrap.command(
                control,
                workdir=spec.workdir,
                disk_mib=resources.disk_mib,
                groups=record.cgroups,
                seccomp=filter_fd,
                network=network,
                places=self.places(spec, held),
                layers=0 if fork is None else fork.places,
            )
            fds += (*self.wrap.pass_fds, *(() if filter_fd is None else (filter_fd,)))
        else:
            command = resident_command([self.python], str(self.base / "program"), str(control))
            if record.cgroups:
                command = ["sh", "-c", bubblewrap.JOIN_GROUPS, "sh", *record.cgroups, "--", *command]

        start = partial(
            open_process, command, fds, stderr, {"PATH": base_folder.PATH, sandbox_records.MARKER: record.id}
        )
        try:
            return await self.launcher.start(start, fork)
        finally:
            if filter_fd is not None:
                os.close(filter_fd)

    def forget(self, sandbox: LocalSandbox) -> None:
        """Forget a stopped sandbox."""
        self.sandboxes.pop(sandbox.id, None)

    # --- sandboxes of other processes

    async def list(self) -> list[SandboxInfo]:
        records = await asyncio.to_thread(sandbox_records.read_all, self.folder or owner.state_folder("local"))
        return [SandboxInfo(r.id, r.labels, r.created_at, r.alive) for r in records]

    async def attach(self, sandbox_id: str) -> AttachedSandbox:
        folder = self.folder or owner.state_folder("local")
        record = sandbox_records.read(folder, sandbox_id)
        if record is None:
            raise SandboxError(f"There is no local sandbox {sandbox_id}; `ale sandbox ls` lists the existing ones.")
        return await attach(folder, f"{record.owner_pid}-{record.owner_start_time}", sandbox_id)

    async def prune(self) -> builtins.list[str]:
        folder = self.folder or owner.state_folder("local")
        gone = await asyncio.to_thread(sandbox_records.reclaim, folder)
        await asyncio.to_thread(SnapshotStore(folder).reclaim)
        return gone

    async def snapshots(self) -> builtins.list[str]:
        return await asyncio.to_thread(SnapshotStore(self.folder or owner.state_folder("local")).names)

    async def remove_snapshot(self, name: str) -> None:
        await in_thread(SnapshotStore(self.folder or owner.state_folder("local")).remove, name)

    async def remove(self, sandbox_id: str) -> None:
        if sandbox_id in self.sandboxes:
            await self.sandboxes[sandbox_id].stop()
            return
        folder = self.folder or owner.state_folder("local")
        record = sandbox_records.read(folder, sandbox_id)
        if record is not None:
            await asyncio.to_thread(sandbox_records.erase, folder, record)
