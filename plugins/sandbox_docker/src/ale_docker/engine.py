"""Docker as a container engine, through aiodocker."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiodocker
import aiohttp

from ale.errors import ConfigError, SandboxError
from ale.specs.sandbox_protocols import SandboxStats
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

BAD_REQUEST, GONE, CONFLICT = 400, 404, 409
PIDS_MAX, MIB = 4096, 1 << 20
TRY_S = 10.0


class DockerEngine(Engine):
    """One connection pool to the engine."""

    name = "Docker"

    def __init__(self, url: str | None, runtime: str | None) -> None:
        self._url, self._runtime = url, runtime
        self._client: aiodocker.Docker | None = None

    @property
    def client(self) -> aiodocker.Docker:
        """The open client."""
        if self._client is None:
            raise SandboxError("The connection to Docker is closed.")
        return self._client

    async def open(self) -> None:
        try:
            self._client = connect(self._url)
            async with asyncio.timeout(20):
                await self._client.version()
        except (OSError, ValueError, TimeoutError, aiodocker.DockerError, aiohttp.ClientError) as error:
            await self.close()
            where = f" at {self._url}" if self._url else ""
            raise ConfigError(
                f"The Docker Engine{where} does not answer ({str(error) or type(error).__name__}); start it "
                "(`systemctl start docker`, or `dockerd`), check that this user may use it, or choose sandbox: local."
            ) from error

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def create(self, plan: ContainerPlan) -> None:
        limits = plan.resources
        host: dict[str, Any] = {
            "AutoRemove": True,
            "NetworkMode": "bridge" if plan.network else "none",
            "CapDrop": ["ALL"],
            "CapAdd": list(plan.capabilities),
            "SecurityOpt": ["no-new-privileges:true"],
            "Mounts": [
                {"Type": "bind", "Source": source, "Target": target, "ReadOnly": not writable}
                for source, target, writable in plan.mounts
            ],
            "PidsLimit": limits.pids or PIDS_MAX,
            "Sysctls": dict(plan.sysctls),
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}},
        }
        if limits.memory_mib is not None:
            host |= {"Memory": limits.memory_mib * MIB, "MemorySwap": limits.memory_mib * MIB}
        if limits.cpus is not None:
            host["NanoCpus"] = int(limits.cpus * 1e9)
        if limits.gpus is not None:
            host["DeviceRequests"] = [{"Count": limits.gpus, "Capabilities": [["gpu"]]}]
        if plan.in_memory:
            host["ReadonlyRootfs"] = True
            host["Tmpfs"] = {
                path: f"size={limits.disk_mib}m,mode={mode},exec,nosuid,nodev" for path, mode in plan.in_memory.items()
            }
        if self._runtime is not None:
            host["Runtime"] = self._runtime
        config: dict[str, Any] = {
            "Image": plan.image,
            "Entrypoint": plan.command[:1],
            "Cmd": plan.command[1:],
            "Labels": dict(plan.labels),
            "User": "0:0",
            "WorkingDir": "/",
            "HostConfig": host,
            "Hostname": "sandbox",
        }
        async with docker_errors(f"create the container {plan.name}"):
            await self.client.containers.create(config, name=plan.name)

    async def start(self, name: str) -> None:
        async with docker_errors(f"start the container {name}"):
            await self.client.containers.container(name).start()

    async def remove(self, name: str) -> None:
        container = self.client.containers.container(name)
        until = time.monotonic() + REMOVE_S
        while True:
            try:
                async with asyncio.timeout(TRY_S):
                    await container.delete(force=True)
                return
            except aiodocker.DockerError as error:
                if error.status == GONE:
                    return
                # The container has ended: it is being removed already, or it ended just before Docker's kill.
                ending = error.status == CONFLICT or "is not running" in str(error.message)
                problem: Exception = error
            except TimeoutError as error:
                # The container may be gone all the same: asked again, Docker says so, or that it is still at it.
                ending, problem = True, error
            except aiohttp.ClientError as error:
                ending, problem = False, error
            if not ending or time.monotonic() > until:
                raise SandboxError(f"Docker could not remove the container {name}: {explain(problem)}") from problem
            await asyncio.sleep(0.01)

    async def containers(self) -> list[FoundContainer]:
        filters = json.dumps({"label": [LABEL]})
        async with docker_errors("list containers"):
            listed = await self.client.containers.list(all=True, filters=filters)
        return [
            FoundContainer(str(c["Names"][0]).lstrip("/"), dict(c["Labels"]), c["State"] == "running")
            for c in listed
            if c["Names"] and c["State"] != "removing"
        ]

    async def find_image(self, image: str) -> str | None:
        try:
            async with docker_errors(f"look for the image {image}"):
                return str((await self.client.images.inspect(image))["Id"])
        except SandboxError as error:
            if status_of(error) == GONE:
                return None
            raise

    async def image_env(self, image: str) -> dict[str, str]:
        async with docker_errors(f"look into the image {image}"):
            found = await self.client.images.inspect(image)
        return read_image_env(found["Config"])

    async def pull(self, image: str) -> None:
        async with docker_errors(f"pull the image {image}"):
            await self.client.images.pull(image)

    async def import_image(self, image: str, tar: bytes) -> None:
        name, _, tag = image.partition(":")
        async with (
            docker_errors(f"import the image {image}"),
            self.client._query(
                "images/create",
                "POST",
                params={"fromSrc": "-", "repo": name, "tag": tag or "latest"},
                data=tar,
                headers={"Content-Type": "application/x-tar"},
                timeout=None,
            ) as response,
        ):
            await response.read()

    async def build(self, image: str, context: bytes) -> None:
        params = {"t": image, "rm": "true", "forcerm": "true"}
        headers = {"Content-Type": "application/x-tar"}
        output: list[str] = []
        try:
            async with (
                docker_errors(f"build the image {image}"),
                self.client._query(
                    "build", "POST", params=params, data=context, headers=headers, timeout=None
                ) as lines,
            ):
                async for line in lines.content:
                    read_build_line(line, output)
        except SandboxError as error:
            if status_of(error) == BAD_REQUEST:
                raise BuildFailed(explain(error.__cause__)) from error
            raise

    async def commit(self, name: str, image: str) -> None:
        repository, _, tag = image.partition(":")
        async with docker_errors(f"save the container {name} as {image}"):
            await self.client.containers.container(name).commit(repository=repository, tag=tag)

    async def images(self, label: str | None = LABEL) -> list[FoundImage]:
        async with docker_errors("list images"):
            listed = await self.client.images.list(filters={"label": [label]} if label else None)
        return [
            FoundImage(
                str(i["Id"]),
                tuple(n for n in i["RepoTags"] or () if "<none>" not in n),
                dict(i["Labels"] or {}),
                float(i["Created"]),
            )
            for i in listed
        ]

    async def remove_image(self, image: str) -> bool:
        try:
            async with docker_errors(f"remove the image {image}"):
                await self.client.images.delete(image)  # not forced: containers that run from it would lose its files
        except SandboxError as error:
            if status_of(error) == CONFLICT:
                return False
            # Of two removals at the same time Docker lets one fail, with a status of its own.
            if status_of(error) != GONE and await self.find_image(image) is not None:
                raise
        return True

    async def logs(self, name: str) -> str:
        with suppress(aiodocker.DockerError, aiohttp.ClientError, TimeoutError):
            async with asyncio.timeout(TRY_S):
                return "".join(await self.client.containers.container(name).log(stdout=True, stderr=True, tail=50))
        return ""

    async def stats(self, name: str) -> SandboxStats:
        async with (
            docker_errors(f"measure the container {name}"),
            self.client._query(f"containers/{name}/stats", params={"stream": "false", "one-shot": "true"}) as response,
            self.client._query(f"containers/{name}/json", params={"size": "true"}) as sized,
        ):
            found = await response.json() or {}  # null: it has just ended
            size = (await sized.json()).get("SizeRw")
        memory, cpu, pids = found.get("memory_stats", {}), found.get("cpu_stats", {}), found.get("pids_stats", {})
        used = cpu.get("cpu_usage", {}).get("total_usage")
        return SandboxStats(memory.get("usage"), None if used is None else used / 1e9, pids.get("current"), size)


def connect(url: str | None) -> aiodocker.Docker:
    """Make a client for the engine at the URL, or the one of DOCKER_HOST, Docker's context or the usual socket."""
    try:
        return aiodocker.Docker(url=url, timeout=aiohttp.ClientTimeout(total=ANSWER_S))
    except AssertionError as error:  # aiodocker asserts that it has found a socket
        raise ValueError("there is no socket at Docker's usual path, and DOCKER_HOST names none") from error


def status_of(error: SandboxError) -> int | None:
    """Return the HTTP status of Docker's answer that is the cause of an error; None if there was no answer."""
    return getattr(error.__cause__, "status", None)


def explain(error: BaseException | None) -> str:
    """Say in words what failed."""
    if isinstance(error, TimeoutError):
        return "it does not answer; look into its log, and restart it if it hangs"
    return str(getattr(error, "message", "") or error) or type(error).__name__


@asynccontextmanager
async def docker_errors(what: str) -> AsyncIterator[None]:
    """Turn Docker's errors into `SandboxError`."""
    try:
        yield
    except (aiodocker.DockerError, aiohttp.ClientError, OSError) as error:
        raise SandboxError(f"Docker could not {what}: {explain(error)}") from error
