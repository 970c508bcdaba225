"""The provider of local sandboxes: chooses how they are isolated, starts them, lists and removes them.

Where bubblewrap works, a sandbox is a set of Linux namespaces (`bubblewrap.py`); where not, it is a plain
subprocess in a folder of its own. Either way one resident process (`resident.py`) lives inside and does the work.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import os
import re
import secrets
import socket
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from ale.errors import ConfigError, SandboxError
from ale.specs.driver import DriverContext, PluginConfig
from ale.specs.sandbox import Resources, SandboxInfo, SandboxProvider, SandboxSpec
from ale_local import bubblewrap, cgroups, program, snapshots, state
from ale_local.launcher import Fork, Launcher
from ale_local.layers import Held, Layers
from ale_local.sandbox import LocalSandbox
from ale_resident import owner
from ale_resident.attached import AttachedSandbox, attach
from ale_resident.channel import Channel
from ale_resident.door import Door
from ale_resident.egress import Gate, check_policy, network_plan
from ale_resident.inside import seccomp
from ale_resident.memory import MemoryWatch
from ale_resident.program import resident_command
from ale_resident.running import Running
from ale_resident.threads import in_thread

log = logging.getLogger("ale.sandbox.local")
INSTALL = "install it (apt-get install bubblewrap, dnf install bubblewrap) and allow user namespaces"


class LocalSandboxConfig(PluginConfig):
    """Settings of the local provider."""

    isolation: Literal["auto", "bubblewrap", "none"] = Field(
        "auto", description="bubblewrap: Linux namespaces; none: a plain subprocess; auto: namespaces where they work."
    )
    host_python: bool = Field(
        True, description="Show the Python installation that runs ALE, read-only, and put it last on PATH."
    )
    shell: str | None = Field(
        None, description="Shell of the commands; null: /bin/bash where there is one, else /bin/sh."
    )
    defaults: Resources = Field(
        Resources(cpus=None, memory_mib=2048, pids=512, disk_mib=512),
        description="Limits where a sandbox's own are null.",
    )
    uid_base: int = Field(
        1_900_000_000, gt=65535, lt=2_147_000_000, description="As root: first of the 65,536 host ids of the sandboxes."
    )


class LocalSandboxProvider(SandboxProvider):
    """Sandboxes on this machine, without a daemon."""

    api_version = ">=1.1,<1.3"
    Config: ClassVar[type[PluginConfig]] = LocalSandboxConfig
    capabilities: ClassVar[frozenset[str]] = frozenset({
        "users", "isolated", "limits", "network_none", "network_endpoint", "egress_policy", "network_full",
        "attach", "reset", "trees", "snapshot", "fork", "shell", "streaming",
    })  # fmt: skip
    config: LocalSandboxConfig

    def __init__(self, config: LocalSandboxConfig, context: DriverContext) -> None:
        super().__init__(config, context)
        self.sandboxes: Running[LocalSandbox] = Running()
        self.groups: dict[str, Path] = {}
        self.folder: Path | None = None
        self.base: Path | None = None
        self.door: Door | None = None
        self.wrap: bubblewrap.Bubblewrap | None = None
        self.launcher: Launcher | None = None
        self.layers: Layers | None = None
        self.python = ""

    @classmethod
    def provides(cls, config: LocalSandboxConfig) -> frozenset[str]:
        """Without isolation: the host's network, and nothing else."""
        if config.isolation != "none":
            return cls.capabilities - {"network_full"}
        return frozenset({"network_full", "attach", "trees", "shell", "streaming"})

    # --- lifetime

    async def start(self) -> None:
        await in_thread(self.prepare)
        assert self.base is not None
        self.door = await Door.opened(self.base, self.sandboxes.get)

    def prepare(self) -> None:
        """Reclaim what dead owners left, make the base folder, choose the isolation. Blocks for some 50 ms."""
        self.folder = owner.state_folder("local")
        gone = state.reclaim(self.folder)
        self.layers = Layers(self.folder)
        self.layers.reclaim()
        if gone:
            log.info("Removed %d sandboxes of processes that are gone.", len(gone))
        self.base = program.make_base(self.folder)
        self.python = program.interpreter(self.config.host_python) or ""
        self.groups = cgroups.parents()
        if self.config.isolation != "none":
            fault = self.try_bubblewrap()
            if fault is not None and self.config.isolation == "bubblewrap":
                raise ConfigError(
                    f"sandbox.isolation is bubblewrap, which does not work here ({fault}): {INSTALL}, "
                    "or set sandbox.isolation to none to run without isolation."
                )
        # What this machine gives, not what the class could.
        self.capabilities = self.provides(self.config)  # type: ignore[misc]
        if self.wrap is None:
            self.python = os.path.realpath(sys.executable)
            self.capabilities = frozenset({"network_full", "attach", "trees", "shell", "streaming"})  # type: ignore[misc]
            asked = self.config.isolation == "none"
            log.warning(
                "The local sandboxes isolate NOTHING: commands run as this user, with its files and its network. "
                "For isolation: %s.",
                "leave sandbox.isolation out" if asked else INSTALL,
            )
        elif self.wrap.namespaces is None:
            self.capabilities = self.capabilities - {"users"}  # type: ignore[misc]
        if self.launcher is None:
            self.launcher = Launcher(None)
        if not self.launcher.can_fork():
            self.capabilities = self.capabilities - {"fork"}  # type: ignore[misc]
        if not {"memory", "pids"} <= self.groups.keys():
            self.capabilities = self.capabilities - {"limits"}  # type: ignore[misc]

    def try_bubblewrap(self) -> str | None:
        """Set bubblewrap up, with several users where that works; the reason where it does not work at all."""
        assert self.base is not None
        if not self.python:
            return "no Python is reachable inside; set sandbox.host_python to true"
        sources = bubblewrap.Bubblewrap.sources(self.base, self.config.host_python)
        namespaces = bubblewrap.make_namespaces(sources, self.config.uid_base)
        fault: str | None = "it failed"
        for candidate in dict.fromkeys((namespaces, None)):
            wrap = bubblewrap.Bubblewrap(self.base, self.python, self.config.host_python, candidate)
            launcher = Launcher(candidate)
            try:
                fault = launcher.run(partial(bubblewrap.probe, wrap))
            except OSError as error:
                fault = str(error)
            if fault is None:
                self.wrap, self.launcher = wrap, launcher
                return None
            launcher.close()
            if candidate is not None:
                candidate.close()
        return fault

    async def close(self) -> None:
        await asyncio.gather(*(sandbox.stop() for sandbox in list(self.sandboxes.values())))
        door, self.door = self.door, None
        if door is not None:
            await door.close()
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
        resources = self.check(spec)
        return await self.sandboxes.start(spec, lambda: self.start_new(spec, resources))

    async def start_new(self, spec: SandboxSpec, resources: Resources) -> LocalSandbox:
        """Start one that is not there."""
        assert self.folder is not None
        assert self.base is not None
        sandbox_id = spec.id or f"ale-{secrets.token_hex(6)}"
        record = self.claim(sandbox_id, spec, resources)
        process: subprocess.Popen[bytes] | None = None
        sandbox: LocalSandbox | None = None
        gate: Gate | None = None
        held: Held | None = None
        try:
            if spec.from_snapshot is not None:
                held = self.hold(spec.from_snapshot)
            if self.wrap is not None:
                gate = await Gate.opened(spec, self.base / f".{sandbox_id}.gate")
            ours, theirs = socket.socketpair()
            with theirs, os.fdopen(os.memfd_create("stderr"), "w+b") as stderr:
                try:
                    process = await self.launch(spec, record, resources, theirs.fileno(), stderr.fileno(), gate, held)
                except BaseException as error:
                    ours.close()
                    if isinstance(error, OSError):
                        raise SandboxError(f"The sandbox {sandbox_id} could not be started: {error}.") from error
                    raise
                theirs.close()
                record = self.note_process(record, process.pid)
                channel = await Channel.open(sandbox_id, ours)
                channel.memory = MemoryWatch(map(Path, record.cgroups))
                sandbox = LocalSandbox(spec, record, self.folder, process, channel, self.forget)
                sandbox.guard(gate, self.context)
                sandbox.keep_stderr(stderr.fileno())
                self.sandboxes[sandbox_id] = sandbox
                sandbox.held = held
                try:
                    if self.wrap is not None:
                        sandbox.constants = partial(self.constants, record=record, resources=resources)
                        sandbox.camera = self.camera(spec, resources, held)
                    await sandbox.set_up(self.constants(spec, record, resources), {} if held else spec.files)
                    if held is not None:
                        await snapshots.restore(held, channel)
                        await sandbox.upload(spec.files)
                    if self.wrap is not None:
                        sandbox.record = self.note_process(record, state.resident_pid(process.pid))
                except SandboxError as error:
                    stderr.seek(0)
                    said = stderr.read(2000).decode("utf-8", "replace").strip()
                    raise SandboxError(f"{error} It said: {said}" if said else str(error)) from error
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
                state.erase(self.folder, record)
            raise

    def hold(self, name: str) -> Held:
        """A snapshot, to start from it. Raises `ConfigError` where there is none, or it was made for another machine."""
        assert self.layers is not None
        held = self.layers.hold(name)
        fault = None
        if held.snapshot.form == "layer" and "fork" not in self.capabilities:
            fault = "was made by a provider that can mount overlays, which this one cannot"
        elif held.snapshot.form == "layer" and held.snapshot.uid_base != self.config.uid_base:
            fault = f"was made with uid_base: {held.snapshot.uid_base}, and here it is {self.config.uid_base}"
        if fault is not None:
            held.close()
            raise ConfigError(f"The snapshot {name!r} {fault}; use it where it was made, or make another.")
        return held

    def places(self, spec: SandboxSpec, held: Held | None) -> tuple[str, ...]:
        """What can be written to in a sandbox, and belongs to its snapshots; a snapshot's own places first."""
        own = bubblewrap.writable(spec.workdir)
        return own if held is None else tuple(dict.fromkeys((*held.snapshot.places, *own)))

    def camera(self, spec: SandboxSpec, resources: Resources, held: Held | None) -> snapshots.Camera:
        """What makes a sandbox's snapshots."""
        assert self.layers is not None
        places = self.places(spec, held)
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        size = (memory if resources.disk_mib is None else resources.disk_mib << 20) * len(places)
        if held is not None:
            size += held.snapshot.bytes
        form: Literal["layer", "archive"] = "layer" if "fork" in self.capabilities else "archive"
        return snapshots.Camera(self.layers, places, form, self.config.uid_base, size)

    def check(self, spec: SandboxSpec) -> Resources:
        """Refuse what cannot be given; the limits, with the provider's own where the spec has none."""
        if spec.image is not None:
            raise ConfigError(
                f"The local sandbox provider has no images, so image: {spec.image!r} cannot be met; "
                "use a container provider (sandbox: docker or podman), or leave it null."
            )
        if spec.from_snapshot is not None and self.wrap is None:
            raise ConfigError(
                f"Without isolation there are no snapshots, so from_snapshot: {spec.from_snapshot!r} cannot be met: {INSTALL}."
            )
        if self.wrap is not None and spec.network == "full":
            raise ConfigError(
                "An isolated local sandbox cannot have the host's whole network, so network: full cannot be met; name what it "
                "needs (needs.network: allow, needs.allow: ['*:443'] is the public web), or use a container provider "
                "(sandbox: docker or podman)."
            )
        if self.wrap is None and spec.network != "full":
            raise ConfigError(
                f"Without isolation a local sandbox has the host's network, so network: {spec.network} cannot be met: "
                f"{INSTALL}, or set needs.network to full."
            )
        check_policy(spec)
        if spec.user == "root":
            raise ConfigError(
                "The agent is an unprivileged user in local sandboxes, so user: root cannot be met; leave it null, or use a "
                "container provider (sandbox: docker or podman)."
            )
        if spec.resources.gpus is not None:
            raise ConfigError(
                "The local sandbox provider hands no GPUs in; leave needs.resources.gpus out, or use sandbox: docker."
            )
        if spec.id is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", spec.id):
            raise ConfigError(f"A sandbox cannot be named {spec.id!r}; use up to 64 letters, digits, '-' and '_'.")
        fault = bubblewrap.workdir_fault(spec.workdir) if self.wrap is not None else None
        if fault is not None:
            raise ConfigError(f"The sandbox's workdir {spec.workdir!r} {fault}.")
        asked = {name for name, value in spec.resources if value is not None}
        unmet = asked - ({"disk_mib", "open_files"} if self.wrap is not None else set())
        if unmet and "limits" not in self.capabilities:
            raise ConfigError(
                "Here the local sandboxes cannot be held to limits (no isolation, or no control groups that ALE may write), "
                f"so {', '.join(sorted(unmet))} cannot be met; leave needs.resources out."
            )
        own = {k: v for k, v in spec.resources.model_dump().items() if v is not None}
        return Resources(**{**self.config.defaults.model_dump(), **own})

    def claim(self, sandbox_id: str, spec: SandboxSpec, resources: Resources) -> state.Record:
        """Take the id, write its record down, make its groups and (in plain mode) its folder."""
        assert self.folder is not None
        try:
            os.close(os.open(self.folder / f"{sandbox_id}.json", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            raise ConfigError(
                f"A sandbox named {sandbox_id!r} exists already; stop it, remove it or use another id."
            ) from None
        groups = [str(path / sandbox_id) for path in self.groups.values()]
        record = state.Record(
            id=sandbox_id,
            pid=0,
            start_time=0,
            owner_pid=os.getpid(),
            owner_start_time=owner.start_time(os.getpid()),
            created_at=time.time(),
            labels={**self.context.labels, **spec.labels},
            cgroups=sorted(set(groups)),
            folder=None if self.wrap is not None else str(self.folder / sandbox_id),
        )
        state.write(self.folder, record)
        try:
            cgroups.create(self.groups, sandbox_id, resources)
            for name in ("work", "home", "tmp") if record.folder is not None else ():
                Path(record.folder or "", name).mkdir(mode=0o700, parents=True)
        except OSError as error:
            state.erase(self.folder, record)
            raise SandboxError(f"The sandbox {sandbox_id} could not be prepared: {error}.") from error
        return record

    async def launch(
        self, spec: SandboxSpec, record: state.Record, resources: Resources, control: int, stderr: int, gate: Gate | None,
        held: Held | None,
    ) -> subprocess.Popen[bytes]:  # fmt: skip
        """Start its process."""
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
                control, spec.workdir, resources.disk_mib, record.cgroups, filter_fd, network, self.places(spec, held),
                0 if fork is None else fork.places,
            )  # fmt: skip
            fds += (*self.wrap.pass_fds, *(() if filter_fd is None else (filter_fd,)))
        else:
            command = resident_command([self.python], str(self.base / "program"), str(control))
            if record.cgroups:
                command = ["sh", "-c", bubblewrap.JOIN_GROUPS, "sh", *record.cgroups, "--", *command]

        def popen() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                command,
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                cwd="/",
                env={"PATH": program.PATH, state.MARKER: record.id},
                start_new_session=True,  # a Ctrl-C in the terminal is the owner's business
            )

        try:
            return await self.launcher.start(popen, fork)
        finally:
            if filter_fd is not None:
                os.close(filter_fd)

    def note_process(self, record: state.Record, pid: int) -> state.Record:
        """Write down which process a sandbox is."""
        assert self.folder is not None
        record = replace(record, pid=pid, start_time=owner.start_time(pid))
        state.write(self.folder, record)
        return record

    def constants(self, spec: SandboxSpec, record: state.Record, resources: Resources) -> list[bytes]:
        """What the resident has to know (see `Resident.set_up`)."""
        if record.folder is None:
            mode, workdir, home, tmp = self.wrap.mode if self.wrap else "single", spec.workdir, bubblewrap.HOME, "/tmp"
        else:
            mode, workdir, home, tmp = "plain", *(f"{record.folder}/{name}" for name in ("work", "home", "tmp"))
        env = {
            "PATH": program.search_path(self.config.host_python),
            "HOME": home,
            "TMPDIR": tmp,
            "LANG": "C.UTF-8",
            "USER": "agent",
            **spec.env,
            state.MARKER: record.id,
        }
        network = "\n".join(network_plan(spec)) if self.wrap is not None else ""
        fields = [mode, workdir, program.find_shell(self.config.shell), self.rlimits(mode, resources), "", network]
        return [os.fsencode(text) for text in (*fields, *(f"{name}={value}" for name, value in env.items()))]

    def rlimits(self, mode: str, resources: Resources) -> str:
        """What is left to the kernel's limits per process because no group enforces it."""
        limits: dict[str, int] = {"RLIMIT_CORE": 0}
        if resources.open_files is not None:
            limits["RLIMIT_NOFILE"] = resources.open_files
        if resources.memory_mib is not None and "memory" not in self.groups:
            limits["RLIMIT_DATA"] = resources.memory_mib << 20
        if resources.pids is not None and "pids" not in self.groups and mode == "single":
            limits["RLIMIT_NPROC"] = resources.pids  # counted per user namespace, which only this mode has per sandbox
        if resources.disk_mib is not None and mode == "plain":
            limits["RLIMIT_FSIZE"] = resources.disk_mib << 20
        return " ".join(f"{name}={value}" for name, value in limits.items())

    def forget(self, sandbox: LocalSandbox) -> None:
        """A sandbox has been stopped."""
        self.sandboxes.pop(sandbox.id, None)

    # --- what others started

    async def list(self) -> list[SandboxInfo]:
        records = await asyncio.to_thread(state.read_all, self.folder or owner.state_folder("local"))
        return [SandboxInfo(r.id, r.labels, r.created_at, r.alive) for r in records]

    async def attach(self, sandbox_id: str) -> AttachedSandbox:
        folder = self.folder or owner.state_folder("local")
        record = state.read(folder, sandbox_id)
        if record is None:
            raise SandboxError(f"There is no local sandbox {sandbox_id}; `ale sandbox ls` lists those that there are.")
        return await attach(folder, f"{record.owner_pid}-{record.owner_start_time}", sandbox_id)

    async def prune(self) -> builtins.list[str]:
        folder = self.folder or owner.state_folder("local")
        gone = await asyncio.to_thread(state.reclaim, folder)
        await asyncio.to_thread(Layers(folder).reclaim)
        return gone

    async def snapshots(self) -> builtins.list[str]:
        return await asyncio.to_thread(Layers(self.folder or owner.state_folder("local")).names)

    async def remove_snapshot(self, name: str) -> None:
        await in_thread(Layers(self.folder or owner.state_folder("local")).remove, name)

    async def remove(self, sandbox_id: str) -> None:
        if sandbox_id in self.sandboxes:
            await self.sandboxes[sandbox_id].stop()
            return
        folder = self.folder or owner.state_folder("local")
        record = state.read(folder, sandbox_id)
        if record is not None:
            await asyncio.to_thread(state.erase, folder, record)
