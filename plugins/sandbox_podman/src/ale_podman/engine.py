"""Podman as a container engine, through podman-py, whose blocking calls run in threads."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import time
from asyncio.subprocess import DEVNULL
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import podman
import requests
from podman.errors import APIError, ImageNotFound, PodmanError

from ale.errors import ConfigError, SandboxError
from ale.specs.sandbox_protocols import SandboxStats
from ale_podman import checkpoint
from ale_podman.leftover_cgroups import remove_groups
from ale_sandbox.containers.engine import (
    ANSWER_S,
    LABEL,
    REMOVE_S,
    BuildFailed,
    ContainerPlan,
    Engine,
    FoundContainer,
    FoundImage,
    read_build_line,
    read_image_env,
)

T = TypeVar("T")
MIB, PIDS_MAX, PERIOD_US, THREADS = 1 << 20, 4096, 100_000, 8
GONE, CONFLICT, FAILED = 404, 409, 500


class ImageGone(Exception):
    """An image was removed while images were listed."""


class PodmanEngine(Engine):
    """One client, used by a few threads."""

    name = "Podman"
    _criu_works: ClassVar[bool | None] = None
    """What `criu check` says of this machine; a process asks once."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._client: podman.PodmanClient | None = None
        self._threads: ThreadPoolExecutor | None = None

    async def _do(self, what: str, work: Callable[[Any], T]) -> T:
        """Run a blocking call in a thread. Raises `SandboxError`, which says what could not be done."""
        client, threads = self._client, self._threads
        if client is None or threads is None:
            raise SandboxError("The connection to Podman is closed.")
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, work, client)
        except (PodmanError, requests.RequestException, OSError, ValueError) as error:
            raise SandboxError(f"Podman could not {what}: {explain(error)}") from error

    async def open(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="podman")
        try:
            self._client = podman.PodmanClient(base_url=self._url or default_url(), max_pool_size=THREADS, timeout=600)
            async with asyncio.timeout(20):
                # Not `client.version()`: for that the service asks the system's package manager, half a second long.
                await self._do("answer", lambda client: client.api.get("/_ping").raise_for_status())
        except (SandboxError, TimeoutError, ValueError) as error:
            await self.close()
            raise ConfigError(
                f"The Podman service at {self._url or default_url()} does not answer "
                f"({str(error) or type(error).__name__}); start it (`podman system service --time=0 URL &`, or "
                "`systemctl --user start podman.socket`), name its URL with sandbox.url, or choose sandbox: local."
            ) from error

    async def close(self) -> None:
        client, self._client = self._client, None
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)
        if client is not None:
            client.close()  # type: ignore[no-untyped-call]

    async def create(self, plan: ContainerPlan) -> None:
        limits, options = plan.resources, ["exec", "nosuid", "nodev"]
        held: dict[str, Any] = {"pids": {"limit": limits.pids or PIDS_MAX}}
        if limits.memory_mib is not None:
            held["memory"] = {"limit": limits.memory_mib * MIB, "swap": limits.memory_mib * MIB}
        if limits.cpus is not None:
            held["cpu"] = {"quota": int(limits.cpus * PERIOD_US), "period": PERIOD_US}
        spec: dict[str, Any] = {
            "name": plan.name,
            "image": plan.image,
            "entrypoint": plan.command[:1],
            "command": plan.command[1:],
            "labels": dict(plan.labels),
            "user": "0:0",
            "work_dir": "/",
            "hostname": "sandbox",
            "remove": True,
            "systemd": "false",
            "netns": {"nsmode": "bridge" if plan.network else "none"},
            "cap_drop": ["ALL"],
            "cap_add": [f"CAP_{name}" for name in plan.capabilities],
            "no_new_privileges": True,
            "resource_limits": held,
            "sysctl": dict(plan.sysctls),
            "mounts": [
                {
                    "type": "bind",
                    "source": source,
                    "destination": target,
                    "options": ["rbind", "rw" if writable else "ro"],
                }
                for source, target, writable in plan.mounts
            ]
            + [
                {"type": "tmpfs", "destination": p, "options": [*options, f"mode={mode}", f"size={limits.disk_mib}m"]}
                for p, mode in plan.in_memory.items()
            ],
            "read_only_filesystem": bool(plan.in_memory),
        }
        if limits.gpus is not None:  # by the device names of `nvidia-ctk cdi generate`
            spec["devices"] = [{"path": f"nvidia.com/gpu={i}"} for i in range(limits.gpus)]

        def work(client: Any) -> None:
            headers = {"Content-Type": "application/json"}
            client.api.post("/containers/create", data=json.dumps(spec), headers=headers).raise_for_status()

        await self._do(f"create the container {plan.name}", work)

    async def start(self, name: str) -> None:
        path = f"/containers/{name}/start"
        await self._do(f"start the container {name}", lambda client: client.api.post(path).raise_for_status())

    async def can_checkpoint(self) -> frozenset[str]:
        """Return the users; Podman uses CRIU, which needs root, and one more right if the agent is another user."""
        if shutil.which("criu") is None or os.getuid() != 0:
            return frozenset()
        if PodmanEngine._criu_works is None:
            check = await asyncio.create_subprocess_exec("criu", "check", stdout=DEVNULL, stderr=DEVNULL)
            PodmanEngine._criu_works = await check.wait() == 0
        if not PodmanEngine._criu_works:
            return frozenset()
        return frozenset({"root", "agent"} if checkpoint.may_ask_for_limits() else {"root"})

    async def checkpoint(self, name: str, archive: Path) -> None:
        def work(client: Any) -> None:
            # No `tcpEstablished`: connections could be saved, but not restored before the network is up.
            asked = {"export": True, "leaveRunning": True, "fileLocks": True}
            process = int(client.containers.get(name).attrs["State"]["Pid"])
            # Frozen, because Podman saves the files after CRIU has saved the memory and resumed the processes.
            with (
                checkpoint.freeze(process),
                closing(client.api.post(f"/containers/{name}/checkpoint", params=asked, stream=True)) as response,
                archive.open("xb") as file,
            ):
                checkpoint.raise_for_status(response, "dump.log")
                for piece in response.iter_content(1 << 20):
                    file.write(piece)

        await self._do(f"checkpoint the processes of {name}", work)

    async def restore(self, plan: ContainerPlan, archive: Path) -> int:
        def work(client: Any) -> int:
            with tempfile.TemporaryFile(dir=archive.parent.parent) as changed:
                checkpoint.rewrite(archive, changed, plan)
                changed.seek(0)
                asked = {"import": True, "name": plan.name, "fileLocks": True}
                response = client.api.post(f"/containers/{plan.name}/restore", params=asked, data=changed)
                checkpoint.raise_for_status(response, "restore.log")
            process = int(client.containers.get(plan.name).attrs["State"]["Pid"])
            checkpoint.thaw(process)  # it was frozen during the checkpoint
            checkpoint.enable_loopback(process)
            return process

        return await self._do(f"start the container {plan.name} from {archive.parent.name}", work)

    async def remove(self, name: str) -> None:
        def work(client: Any) -> list[str]:
            params = {"force": True, "timeout": 0, "v": True}
            response = client.api.delete(f"/containers/{name}", params=params, timeout=ANSWER_S)
            if response.status_code == 404:
                return []
            response.raise_for_status()
            return [str(removed["Id"]) for removed in response.json() or []]

        until = time.monotonic() + REMOVE_S
        while True:
            try:
                removed = await self._do(f"remove the container {name}", work)
                break
            except SandboxError as error:
                # The service refuses while the container ends by itself; other errors will not go away.
                if not isinstance(error.__cause__, APIError) or time.monotonic() > until:
                    raise
                await asyncio.sleep(0.05)
        for container in removed:
            await remove_groups(container)

    async def containers(self) -> list[FoundContainer]:
        def work(client: Any) -> list[FoundContainer]:
            params = {"all": True, "filters": json.dumps({"label": [LABEL]})}
            response = client.api.get("/containers/json", params=params)
            response.raise_for_status()
            return [
                FoundContainer(c["Names"][0], dict(c["Labels"] or {}), c["State"] == "running")
                for c in response.json()
                if c["Names"] and c["State"] not in ("removing", "stopping")
            ]

        return await self._do("list containers", work)

    async def find_image(self, image: str) -> str | None:
        def work(client: Any) -> str | None:
            try:
                return str(client.images.get(image).id)
            except ImageNotFound:
                return None

        return await self._do(f"look for the image {image}", work)

    async def image_env(self, image: str) -> dict[str, str]:
        found = await self._do(f"look into the image {image}", lambda client: client.images.get(image).attrs)
        return read_image_env(found["Config"])

    async def pull(self, image: str) -> None:
        await self._do(f"pull the image {image}", lambda client: client.images.pull(image))

    async def import_image(self, image: str, tar: bytes) -> None:
        def work(client: Any) -> None:
            response = client.api.post(
                "/images/import",
                params={"reference": f"localhost/{image}"},
                data=tar,
                headers={"Content-Type": "application/x-tar"},
            )
            response.raise_for_status()

        await self._do(f"import the image {image}", work)

    async def build(self, image: str, context: bytes) -> None:
        answers: list[Any] = []

        def work(client: Any) -> None:
            # Without layers no images without names are left.
            params: Any = {"t": f"localhost/{image}", "rm": True, "forcerm": True, "layers": False}
            headers = {"Content-Type": "application/x-tar"}
            response = client.api.post("/build", params=params, data=context, headers=headers, stream=True)
            answers.append(response)
            if response.status_code == FAILED:
                raise BuildFailed(response.text)
            response.raise_for_status()
            output: list[str] = []
            for line in response.iter_lines():
                read_build_line(line, output)

        try:
            await self._do(f"build the image {image}", work)
        except asyncio.CancelledError:
            for response in answers:  # the thread reads on until the service closes the connection
                response.raw.shutdown()
            raise

    async def commit(self, name: str, image: str) -> None:
        repository, _, tag = image.partition(":")

        def work(client: Any) -> None:
            params = {"container": name, "repo": repository, "tag": tag, "pause": True}
            client.api.post("/commit", params=params).raise_for_status()

        await self._do(f"save the container {name} as {image}", work)

    async def images(self, label: str | None = LABEL) -> list[FoundImage]:
        def work(client: Any) -> list[FoundImage]:
            filters = json.dumps({"label": [label]} if label else {})
            response = client.api.get("/images/json", params={"filters": filters})
            if response.status_code == FAILED and "not known" in response.text:
                raise ImageGone  # removed while the service listed it
            response.raise_for_status()
            return [
                FoundImage(
                    str(i["Id"]),
                    tuple(n.removeprefix("localhost/") for n in i.get("Names") or ()),
                    dict(i.get("Labels") or {}),
                    float(i["Created"]),
                )
                for i in response.json()
            ]

        for _ in range(20):
            with suppress(ImageGone):
                return await self._do("list images", work)
        raise SandboxError("Podman could not list images, because images were removed at every try.")

    async def remove_image(self, image: str) -> bool:
        def work(client: Any) -> bool:
            # Not forced: that would end the containers that run from it.
            response = client.api.delete(f"/images/{image}")
            # The id of an image that was removed just now it takes for a name, and refuses that.
            if response.status_code not in (GONE, CONFLICT) and "64-byte hexadecimal" not in response.text:
                response.raise_for_status()
            return bool(response.status_code != CONFLICT)

        return await self._do(f"remove the image {image}", work)

    async def logs(self, name: str) -> str:
        def work(client: Any) -> str:
            lines = client.containers.get(name).logs(stdout=True, stderr=True, tail=50)
            return b"".join([lines] if isinstance(lines, bytes) else lines).decode("utf-8", "replace")

        with suppress(SandboxError):
            return await self._do(f"read the log of {name}", work)
        return ""

    async def stats(self, name: str) -> SandboxStats:
        def work(client: Any) -> SandboxStats:
            response = client.api.get("/containers/stats", params={"containers": name, "stream": False})
            response.raise_for_status()
            (found, *_) = response.json()["Stats"] or [{}]
            cpu = found.get("CPUNano")
            query = {"size": True, "filters": json.dumps({"name": [f"^{name}$"]})}
            sizes = client.api.get("/containers/json", params=query)
            sizes.raise_for_status()
            (sized, *_) = sizes.json() or [{}]
            size = (sized.get("Size") or {}).get("rwSize")
            return SandboxStats(found.get("MemUsage"), None if cpu is None else cpu / 1e9, found.get("PIDs"), size)

        return await self._do(f"measure the container {name}", work)


def default_url() -> str:
    """Return where this user's service usually listens."""
    user = os.getuid()
    return "unix:///run/podman/podman.sock" if user == 0 else f"unix:///run/user/{user}/podman/podman.sock"


def explain(error: Exception) -> str:
    """Return the service's message about an error."""
    explanation = getattr(error, "explanation", None) if isinstance(error, APIError) else None
    return str(explanation or error).strip() or type(error).__name__
