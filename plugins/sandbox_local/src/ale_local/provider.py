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
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from ale.errors import ConfigError, SandboxError
from ale.specs.driver import DriverContext, PluginConfig
from ale.specs.sandbox import Resources, SandboxInfo, SandboxProvider, SandboxSpec
from ale_local import bubblewrap, cgroups, program, seccomp, state
from ale_local.sandbox import LocalSandbox
from ale_resident import owner
from ale_resident.channel import Channel
from ale_resident.program import resident_command

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
    capabilities: ClassVar[frozenset[str]] = frozenset({"users", "isolated", "network_none", "limits", "network_full"})
    config: LocalSandboxConfig

    def __init__(self, config: LocalSandboxConfig, context: DriverContext) -> None:
        super().__init__(config, context)
        self.sandboxes: dict[str, LocalSandbox] = {}
        self.groups: dict[str, Path] = {}
        self.folder: Path | None = None
        self.base: Path | None = None
        self.wrap: bubblewrap.Bubblewrap | None = None
        self.python = ""

    @classmethod
    def provides(cls, config: LocalSandboxConfig) -> frozenset[str]:
        """Without isolation: the host's network, and nothing else."""
        open_network = frozenset({"network_full"})
        return open_network if config.isolation == "none" else cls.capabilities - open_network

    # --- lifetime

    async def start(self) -> None:
        await asyncio.to_thread(self.prepare)

    def prepare(self) -> None:
        """Reclaim what dead owners left, make the base folder, choose the isolation. Blocks for some 50 ms."""
        self.folder = owner.state_folder("local")
        gone = state.reclaim(self.folder)
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
            self.capabilities = frozenset({"network_full"})  # type: ignore[misc]
            asked = self.config.isolation == "none"
            log.warning(
                "The local sandboxes isolate NOTHING: commands run as this user, with its files and its network. "
                "For isolation: %s.",
                "leave sandbox.isolation out" if asked else INSTALL,
            )
        elif self.wrap.namespaces is None:
            self.capabilities = self.capabilities - {"users"}  # type: ignore[misc]
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
            fault = bubblewrap.probe(wrap)
            if fault is None:
                self.wrap = wrap
                return None
            if candidate is not None:
                candidate.close()
        return fault

    async def close(self) -> None:
        await asyncio.gather(*(sandbox.stop() for sandbox in list(self.sandboxes.values())))
        if self.wrap is not None and self.wrap.namespaces is not None:
            self.wrap.namespaces.close()
        self.wrap = None
        if self.base is not None:
            await asyncio.to_thread(owner.remove_folder, self.base)
            self.base = None

    # --- sandboxes

    async def start_sandbox(self, spec: SandboxSpec) -> LocalSandbox:
        if self.folder is None or self.base is None:
            raise SandboxError("The local sandbox provider is not running; use it inside `async with provider:`.")
        resources = self.check(spec)
        sandbox_id = spec.id or f"ale-{secrets.token_hex(6)}"
        record = self.claim(sandbox_id, spec, resources)
        process: subprocess.Popen[bytes] | None = None
        sandbox: LocalSandbox | None = None
        try:
            ours, theirs = socket.socketpair()
            with theirs, os.fdopen(os.memfd_create("stderr"), "w+b") as stderr:
                try:
                    process = self.launch(spec, record, resources, theirs.fileno(), stderr.fileno())
                except OSError as error:
                    ours.close()
                    raise SandboxError(f"The sandbox {sandbox_id} could not be started: {error}.") from error
                theirs.close()
                record = self.note_process(record, process.pid)
                channel = await Channel.open(sandbox_id, ours)
                sandbox = LocalSandbox(spec, record, self.folder, process, channel, self.forget)
                self.sandboxes[sandbox_id] = sandbox
                try:
                    await sandbox.set_up(self.constants(spec, record, resources), spec.files)
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
                state.erase(self.folder, record)
            raise

    def check(self, spec: SandboxSpec) -> Resources:
        """Refuse what cannot be given; the limits, with the provider's own where the spec has none."""
        for value, name in ((spec.image, "image"), (spec.from_snapshot, "from_snapshot")):
            if value is not None:
                raise ConfigError(
                    f"The local sandbox provider has no images and no snapshots, so {name}: {value!r} cannot be met; "
                    "use a container provider (sandbox: docker or podman), or leave it null."
                )
        if spec.network != "none" and not (self.wrap is None and spec.network == "full"):
            raise ConfigError(
                f"A local sandbox has no network, so network: {spec.network} cannot be met; set needs.network to none, "
                "or use a container provider (sandbox: docker or podman)."
            )
        if spec.id is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", spec.id):
            raise ConfigError(f"A sandbox cannot be named {spec.id!r}; use up to 64 letters, digits, '-' and '_'.")
        fault = bubblewrap.workdir_fault(spec.workdir) if self.wrap is not None else None
        if fault is not None:
            raise ConfigError(f"The sandbox's workdir {spec.workdir!r} {fault}.")
        asked = {name for name, value in spec.resources if value is not None}
        unmet = asked - ({"disk_mib"} if self.wrap is not None else set())
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

    def launch(
        self, spec: SandboxSpec, record: state.Record, resources: Resources, control: int, stderr: int
    ) -> subprocess.Popen[bytes]:
        """Start its process."""
        assert self.base is not None
        fds: tuple[int, ...] = (control,)
        filter_fd = None
        if self.wrap is not None:
            filter_fd = seccomp.open_program()
            command = self.wrap.command(control, spec.workdir, resources.disk_mib, record.cgroups, filter_fd)
            fds += (*self.wrap.pass_fds, *(() if filter_fd is None else (filter_fd,)))
        else:
            command = resident_command([self.python], str(self.base / "program"), str(control))
            if record.cgroups:
                command = ["sh", "-c", bubblewrap.JOIN_GROUPS, "sh", *record.cgroups, "--", *command]
        try:
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
        fields = [mode, workdir, program.find_shell(self.config.shell), self.rlimits(mode, resources), ""]
        return [os.fsencode(text) for text in (*fields, *(f"{name}={value}" for name, value in env.items()))]

    def rlimits(self, mode: str, resources: Resources) -> str:
        """What is left to the kernel's limits per process because no group enforces it."""
        limits: dict[str, int] = {"RLIMIT_CORE": 0}
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

    async def prune(self) -> builtins.list[str]:
        return await asyncio.to_thread(state.reclaim, self.folder or owner.state_folder("local"))

    async def remove(self, sandbox_id: str) -> None:
        if sandbox_id in self.sandboxes:
            await self.sandboxes[sandbox_id].stop()
            return
        folder = self.folder or owner.state_folder("local")
        record = state.read(folder, sandbox_id)
        if record is not None:
            await asyncio.to_thread(state.erase, folder, record)
