"""The provider `local`: starts sandboxes, remembers them in a state folder, and reclaims what dead owners left.

The state folder (`<tmp>/ale-local-<uid>`) holds one JSON file a sandbox. A sandbox dies with its owner (its resident
ends at the end of its channel, bubblewrap dies with its parent); a later start removes the groups and folders that
a killed owner could not.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ale.errors import ConfigError, SandboxError
from ale.specs.driver import DriverContext, PluginConfig
from ale.specs.sandbox import SandboxInfo, SandboxProvider, SandboxSpec
from ale_local import bubblewrap, cgroups
from ale_local.channel import Channel
from ale_local.sandbox import PATH, LocalSandbox, Parts, kill

log = logging.getLogger("ale.local")
RESIDENT = Path(__file__).with_name("resident.py")
START_TIMEOUT_S = 20.0


class LocalSandboxProvider(SandboxProvider):
    """See `SandboxProvider`."""

    capabilities = frozenset({"users", "isolated", "network_none", "limits"})

    class Config(PluginConfig):
        """Settings of the sandbox `local`."""

        isolation: Literal["auto", "bubblewrap", "none"] = Field("auto", description="bubblewrap, none (a plain subprocess), or auto: bubblewrap where it works.")
        host_python: bool = Field(True, description="Make the Python installation that runs ALE available inside, read-only.")

    config: Config

    def __init__(self, config: Any, context: DriverContext) -> None:
        super().__init__(config, context)
        self._live: dict[str, LocalSandbox] = {}
        self._user_namespace: int | None = None
        self._plain = config.isolation == "none"
        self._state = Path(tempfile.gettempdir()) / f"ale-local-{os.geteuid()}"

    async def start(self) -> None:
        """Prepare the state folder, reclaim what is dead, find out whether bubblewrap works."""
        self._state.mkdir(mode=0o700, exist_ok=True)
        if self._state.is_symlink() or self._state.stat().st_uid != os.geteuid():
            raise ConfigError(f"sandbox: the state folder {self._state} belongs to somebody else; remove it.")
        await asyncio.to_thread(self._reclaim)
        if self._plain:
            self._warn("sandbox.isolation is 'none'")
            return
        try:
            if bubblewrap.multi_user():
                self._user_namespace = await asyncio.to_thread(bubblewrap.open_user_namespace)
            async with await self.start_sandbox(SandboxSpec()) as probe:
                result = await probe.exec("exit 7", timeout_s=START_TIMEOUT_S)
                if result.exit_code != 7:
                    raise SandboxError(f"a probe ended with {result.exit_code}: {result.output.strip()}")
        except SandboxError as error:
            if self.config.isolation == "bubblewrap":
                raise ConfigError(f"sandbox.isolation is 'bubblewrap', which does not work here: {error}") from error
            self._plain = True
            self._warn(str(error).rstrip("."))

    def _warn(self, reason: str) -> None:
        log.warning(
            "The sandbox isolates NOTHING: commands run as plain processes of yours (%s). "
            "`apt-get install bubblewrap` brings isolation.", reason,
        )  # fmt: skip

    async def close(self) -> None:
        """Stop every sandbox that this provider started."""
        await asyncio.gather(*(sandbox.stop() for sandbox in list(self._live.values())))
        if self._user_namespace is not None:
            os.close(self._user_namespace)
            self._user_namespace = None

    async def start_sandbox(self, spec: SandboxSpec) -> LocalSandbox:
        """See `SandboxProvider.start_sandbox`."""
        self._refuse(spec)
        sandbox_id = spec.id or f"local-{secrets.token_hex(6)}"
        if sandbox_id in self._live or self._record(sandbox_id).exists():
            raise ConfigError(f"A sandbox with the id '{sandbox_id}' exists already.")
        host_end, inner_end = socket.socketpair()
        host_end.setblocking(False)
        channel = Channel(sandbox_id)
        group = cgroups.make_group(sandbox_id, spec.resources)
        folder = Path(tempfile.mkdtemp(prefix="box-", dir=self._state)) if self._plain else None
        process: subprocess.Popen[bytes] | None = None
        sandbox: LocalSandbox | None = None
        try:
            workdir = spec.workdir if folder is None else str(folder / "work")
            process = await asyncio.to_thread(self._launch, spec, inner_end, group, folder, workdir)
            inner_end.close()
            self._remember(sandbox_id, spec, process.pid, folder)
            env = _environment(workdir, folder, self.config.host_python)
            parts = Parts(process, channel, group, workdir, env, folder, lambda: self._forget(sandbox_id))
            sandbox = self._live[sandbox_id] = LocalSandbox(sandbox_id, spec, parts)
            await channel.open(host_end)
            async with asyncio.timeout(START_TIMEOUT_S):
                await asyncio.shield(channel.ready)
            if spec.files:
                await sandbox.upload(spec.files)
            return sandbox
        except BaseException as error:
            inner_end.close()
            if sandbox is not None:
                await sandbox.stop()
            else:
                host_end.close()
                if group is not None:
                    group.remove()
            reason = _last_words(process)
            if isinstance(error, SandboxError | TimeoutError | OSError):
                raise SandboxError(f"A local sandbox did not start: {reason or error or 'no answer in time'}.") from error
            raise

    def _refuse(self, spec: SandboxSpec) -> None:
        """What cannot be given is refused, never ignored. Raises `ConfigError`."""
        if spec.image is not None:
            raise ConfigError(f"The sandbox 'local' has no images (asked for '{spec.image}'); use docker or podman.")
        if spec.from_snapshot is not None:
            raise ConfigError("The sandbox 'local' has no snapshots.")
        if spec.network != "none" and not self._plain:
            raise ConfigError(f"The sandbox 'local' gives no network; needs.network is '{spec.network}'.")
        if not spec.workdir.startswith("/") or spec.workdir == "/":
            raise ConfigError(f"The work folder must be an absolute path below /, not '{spec.workdir}'.")

    def _launch(
        self, spec: SandboxSpec, inner_end: socket.socket, group: cgroups.Group | None, folder: Path | None, workdir: str
    ) -> subprocess.Popen[bytes]:
        """Start the resident (blocking: a millisecond or two)."""
        passed = [inner_end.fileno()]
        if folder is None:
            for text in (bubblewrap.PASSWD, bubblewrap.GROUP):
                passed.append(_memory_file(text))
            if self._user_namespace is not None:
                passed.append(self._user_namespace)
            command = bubblewrap.command_line(
                workdir=workdir, disk_mib=spec.resources.disk_mib, host_python=self.config.host_python,
                resident=RESIDENT, user_namespace=self._user_namespace, passwd=(passed[1], passed[2]),
            )  # fmt: skip
        else:
            for name in ("work", "tmp"):
                (folder / name).mkdir()
            command = [bubblewrap.resident_python(), "-I", "-S", str(RESIDENT)]
        limits = {"CORE": 0}
        if spec.resources.disk_mib:
            limits["FSIZE"] = spec.resources.disk_mib << 20
        switch = "1" if self._user_namespace is not None and folder is None else "0"
        command += [
            workdir, bubblewrap.shell(), switch, "0" if folder is None else "1",
            ",".join(f"{k}={v}" for k, v in limits.items()), str(inner_end.fileno()),
        ]  # fmt: skip
        if group is not None:
            # The shell enters the groups before it becomes bubblewrap, so that nothing ever runs outside of them.
            enter = "".join(f'echo $$ > "{file}"; ' for file in group.procs_files)
            command = ["/bin/sh", "-c", enter + 'exec "$@"', "sh", *command]
        try:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                pass_fds=passed, env={"PATH": PATH}, cwd="/", start_new_session=True,
            )  # fmt: skip
        finally:
            for fd in passed[1:3] if folder is None else ():
                os.close(fd)

    # -- what is remembered ------------------------------------------------------------------------------------

    def _record(self, sandbox_id: str) -> Path:
        if "/" in sandbox_id or sandbox_id.startswith("."):
            raise ConfigError(f"'{sandbox_id}' cannot be the id of a sandbox.")
        return self._state / f"{sandbox_id}.json"

    def _remember(self, sandbox_id: str, spec: SandboxSpec, pid: int, folder: Path | None) -> None:
        data = {
            "id": sandbox_id, "pid": pid, "born": _birth(pid), "owner": os.getpid(), "owner_born": _birth(os.getpid()),
            "labels": {**self.context.labels, **spec.labels}, "created_at": time.time(),
            "folder": str(folder) if folder else None,
        }  # fmt: skip
        self._record(sandbox_id).write_text(json.dumps(data))

    def _forget(self, sandbox_id: str) -> None:
        self._live.pop(sandbox_id, None)
        self._record(sandbox_id).unlink(missing_ok=True)

    def _records(self) -> list[dict[str, Any]]:
        found = []
        for file in sorted(self._state.glob("*.json")):
            with contextlib.suppress(OSError, ValueError):
                found.append(json.loads(file.read_text()))
        return found

    def _reclaim(self) -> None:
        """Remove what owners that no longer live left behind."""
        for record in self._records():
            if _birth(record["owner"]) != record["owner_born"]:
                self._remove_record(record)

    def _remove_record(self, record: dict[str, Any]) -> None:
        if _birth(record["pid"]) == record["born"]:
            kill(record["pid"])
            for _ in range(500):
                if _birth(record["pid"]) != record["born"]:
                    break
                time.sleep(0.004)
        group = cgroups.existing_group(record["id"])
        for _ in range(500):
            if group is None or group.remove():
                break
            time.sleep(0.004)
        if record["folder"]:
            shutil.rmtree(record["folder"], ignore_errors=True)
        self._record(record["id"]).unlink(missing_ok=True)

    async def list(self) -> list[SandboxInfo]:
        """See `SandboxProvider.list`."""
        return [
            SandboxInfo(r["id"], r["labels"], r["created_at"], _birth(r["pid"]) == r["born"]) for r in self._records()
        ]

    async def remove(self, sandbox_id: str) -> None:
        """See `SandboxProvider.remove`."""
        if sandbox_id in self._live:
            await self._live[sandbox_id].stop()
            return
        for record in self._records():
            if record["id"] == sandbox_id:
                await asyncio.to_thread(self._remove_record, record)


def _environment(workdir: str, folder: Path | None, host_python: bool) -> dict[str, str]:
    path = f"{PATH}:{sys.prefix}/bin" if host_python else PATH
    tmp = str(folder / "tmp") if folder else "/tmp"
    return {
        "PATH": path, "HOME": workdir, "TMPDIR": tmp, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", "TERM": "dumb",
    }  # fmt: skip


def _memory_file(text: str) -> int:
    fd = os.memfd_create("ale")
    os.write(fd, text.encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _birth(pid: int) -> str | None:
    """When a process started (clock ticks since boot), which tells it from a later one with the same id."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _last_words(process: subprocess.Popen[bytes] | None) -> str:
    """What a process that did not start said on stderr."""
    if process is None or process.stderr is None:
        return ""
    if process.poll() is None:
        return ""
    return process.stderr.read().decode("utf-8", "replace").strip().rstrip(".")
