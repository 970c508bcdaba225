"""The provider `rock`: a run's sandboxes are those of a ROCK service (`ale rock serve`), here or on other machines.

1. The provider names each sandbox and starts it by ROCK's own request, with ALE's whole spec as an extra field.
2. Each sandbox is labelled with its owner: machine, process and provider. So no other provider gets it under the same
   id, and the next start on that machine, or `prune`, removes the sandboxes of a killed run. If the machine never comes
   back, the service removes them after `idle_s`.
3. Its capabilities are those that all workers of the service have; `start` asks the service for them.
"""

from __future__ import annotations

import asyncio
import builtins
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

from pydantic import TypeAdapter

from ale.config.capabilities import NETWORKS
from ale.errors import ConfigError, SandboxError
from ale.specs.driver import Driver, DriverContext, PluginConfig
from ale.specs.sandbox import SandboxInfo, SandboxProvider, SandboxSpec
from ale.specs.sandbox_protocols import Snapshots
from ale.task import ImageBuild
from ale_rock.client.attach import attach
from ale_rock.client.builds import ServiceBuilds
from ale_rock.client.config import LOOPBACK, RockConfig, headers_of
from ale_rock.client.protocols import PARTS, sandbox_type_of
from ale_rock.client.refused_connections import follow_refusals
from ale_rock.client.sandbox import RockSandbox
from ale_rock.client.service_client import ALE, ANSWER_S, Missing, ServiceClient
from ale_rock.client.snapshots import ServiceSnapshots, this_machine
from ale_rock.schemas import Spec
from ale_sandbox.host.commands import as_bytes
from ale_sandbox.host.owned_folders import is_running, this_process
from ale_sandbox.network.egress_gate import report
from ale_sandbox.network.policy import endpoint_address, network_plan

OWNER = "ale.rock.owner"
"""The label with a sandbox's owner; only this provider sees it."""
GIVE_UP_S = 0.2
SPEC: TypeAdapter[SandboxSpec] = TypeAdapter(Spec)


class RockProvider(Driver, SandboxProvider):
    """Starts sandboxes at a ROCK service."""

    api_version = ">=1.0,<1.2"
    Config: ClassVar[type[PluginConfig]] = RockConfig
    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"users", "isolated", "limits", "images", "builds", "gpu", "fork"}
        | {"network_none", "network_endpoint", "egress_policy", "network_full"}
    )
    sandbox_type: ClassVar[type[RockSandbox]] = sandbox_type_of(frozenset(PARTS))
    config: RockConfig

    def __init__(self, config: RockConfig, context: DriverContext) -> None:
        super().__init__(config, context)
        self.client = ServiceClient(config.url, headers_of(config))
        self.own_snapshots, self._builds = ServiceSnapshots(self.client), ServiceBuilds(self.client)
        self._owner = f"{this_machine()}/{this_process()}/{secrets.token_hex(4)}"
        self._running = False
        self._sandboxes: dict[str, RockSandbox] = {}
        self._starting: dict[asyncio.Task[RockSandbox], str] = {}
        """Starts that are under way, with their sandboxes' ids."""

    @classmethod
    def provides(cls, config: RockConfig) -> frozenset[str]:
        """Return the capabilities; a service elsewhere cannot reach the model endpoint of this machine."""
        here = urlsplit(config.url).hostname in LOOPBACK
        return cls.capabilities if here else cls.capabilities - {"network_endpoint"}

    # --- lifetime

    async def start(self) -> None:
        """Ask the service what its workers can do, and remove what killed runs of this machine have left there."""
        status = await self.client.json("GET", f"{ALE}/status")
        workers = [worker for worker in status["workers"] if worker["alive"]]
        if not workers:
            raise SandboxError(
                f"The ROCK service at {self.config.url} has no worker; start one with "
                f"`ale rock worker --admin {self.config.url}`."
            )
        able, protocols = self.provides(self.config), frozenset(PARTS)
        defaults = {worker.get("default_image") for worker in workers}
        self.default_image = defaults.pop() if len(defaults) == 1 else None
        for worker in workers:
            able &= frozenset(worker["capabilities"])
            protocols &= frozenset(worker["protocols"])
            if urlsplit(worker["url"]).hostname not in LOOPBACK:
                able -= {"network_endpoint"}
        self.capabilities = able  # type: ignore[misc]
        self.sandbox_type = sandbox_type_of(protocols)  # type: ignore[misc]
        self._running = True
        await self._remove_ownerless()
        await self.own_snapshots.remove_ownerless()

    async def close(self) -> None:
        self._running = False
        try:
            await asyncio.gather(*(self._give_up(task, each) for task, each in list(self._starting.items())))
            boxes = list(self._sandboxes.values())
            problems = await asyncio.gather(*(box.stop() for box in boxes), return_exceptions=True)
            await self.own_snapshots.close()
        finally:
            self._sandboxes.clear()
            await self.client.close()
        for problem in problems:
            if isinstance(problem, BaseException):
                raise problem

    # --- sandboxes

    async def start_sandbox(self, spec: SandboxSpec) -> RockSandbox:
        if not self._running:
            raise SandboxError("The rock provider is not running; use it inside `async with provider:`.")
        self._check(spec)
        sandbox_id = spec.id or f"ale-{secrets.token_hex(8)}"
        # A start that is under way must be answered before it is known whether there is a sandbox to remove.
        task = asyncio.ensure_future(self._start(spec, sandbox_id))
        self._starting[task] = sandbox_id
        task.add_done_callback(lambda done: self._starting.pop(done, None))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await self._give_up(task, sandbox_id)
            raise

    async def _give_up(self, task: asyncio.Task[RockSandbox], sandbox_id: str) -> None:
        """End a start that was cancelled; if it waits in the service's queue, removing it there ends it."""
        while not task.done():
            await self._remove_quietly(sandbox_id)
            await asyncio.wait([task], timeout=GIVE_UP_S)
        if not task.cancelled() and task.exception() is None:
            await task.result().stop()

    async def _start(self, spec: SandboxSpec, sandbox_id: str) -> RockSandbox:
        there = self._sandboxes.get(sandbox_id)
        limit = self.config.start_timeout_s
        asked = {
            "sandbox_id": sandbox_id,
            "startup_timeout": limit,
            "image": spec.image,
            "spec": self.sent_spec(spec, sandbox_id),
        }
        try:
            async with asyncio.timeout(limit + ANSWER_S):
                await self.client.rock("POST", "/start_async", asked, limit + ANSWER_S)
                await self._wait_until_ready(sandbox_id)
        except TimeoutError:
            await self._remove_quietly(sandbox_id)
            raise SandboxError(
                f"The sandbox {sandbox_id} was not ready within {limit:g} s (sandbox.start_timeout_s)."
            ) from None
        except SandboxError:
            if there is None:
                await self._remove_quietly(sandbox_id)
            if spec.from_snapshot is not None and spec.from_snapshot not in await self.own_snapshots.names():
                raise ConfigError(
                    f"The ROCK service at {self.config.url} has no snapshot {spec.from_snapshot!r} of yours; it was "
                    "removed, or the worker that has it is not there."
                ) from None
            raise
        if there is not None:
            return there
        box = self._sandboxes[sandbox_id] = self.sandbox_type(spec, sandbox_id, self)
        if network_plan(spec):
            box.following = asyncio.create_task(follow_refusals(box, partial(report, box, self.context)))
        return box

    def sent_spec(self, spec: SandboxSpec, sandbox_id: str) -> dict[str, Any]:
        """Return the spec that the service gets, as JSON."""
        own = {
            "id": sandbox_id,
            "labels": {**self.context.labels, **spec.labels, OWNER: self._owner},
            "idle_s": spec.idle_s or self.config.idle_s,
        }
        try:
            sent: dict[str, Any] = SPEC.dump_python(spec.model_copy(update=own), mode="json")
            json.dumps({**sent, "files": [*sent.get("files", ())]}, ensure_ascii=False).encode()
        except ValueError as error:  # of the characters, by pydantic or here
            raise ConfigError(
                f"The spec of the sandbox {sandbox_id!r} holds half a character, which no service can be sent: {error}."
            ) from None
        return sent

    async def _wait_until_ready(self, sandbox_id: str) -> None:
        """Poll while the start waits in the queue; usually it is ready when its request is answered."""
        wait_s = 0.05
        while True:
            query = {"sandbox_id": sandbox_id, "include_all_states": "True"}
            status = await self.client.rock("GET", "/get_status", query=query)
            if status["is_alive"]:
                return
            faults = [step["message"] for step in status["status"].values() if step["status"] in ("failed", "timeout")]
            if faults or status["state"] != "pending":
                reason = faults[0] if faults else status.get("message") or f"it is {status['state']}"
                raise SandboxError(f"The sandbox {sandbox_id} did not start: {reason}")
            await asyncio.sleep(wait_s)
            wait_s = min(1.0, 2 * wait_s)

    def _check(self, spec: SandboxSpec) -> None:
        """Raise `ConfigError` for a spec that the service cannot serve."""
        lacking = {
            f"the network policy '{spec.network}'": NETWORKS[spec.network] not in self.capabilities,
            f"the model endpoint {spec.endpoint} of this machine": asks_for_this_machine(spec)
            and "network_endpoint" not in self.capabilities,
            "a snapshot to start from": spec.from_snapshot is not None and not issubclass(self.sandbox_type, Snapshots),
            f"the image {spec.image!r}": spec.image is not None and "images" not in self.capabilities,
            "limits": spec.resources.model_dump(exclude_none=True) and "limits" not in self.capabilities,
            "GPUs": spec.resources.gpus and "gpu" not in self.capabilities,
        }
        for what, lacks in lacking.items():
            if lacks:
                raise ConfigError(
                    f"The workers of the ROCK service at {self.config.url} do not offer {what}; start workers whose "
                    "provider does."
                )

    # --- the list, and removal; also for a provider that was not started

    async def list(self) -> builtins.list[SandboxInfo]:
        async with self._asked():
            return [
                SandboxInfo(each["id"], visible(each["labels"]), each["created_at"], each["alive"])
                for each in await self._entries()
            ]

    async def remove(self, sandbox_id: str) -> None:
        async with self._asked():
            box = self._sandboxes.get(sandbox_id)
            await (self._remove(sandbox_id) if box is None else box.stop())

    async def prune(self) -> builtins.list[str]:
        async with self._asked():
            await self.own_snapshots.remove_ownerless()
            return await self._remove_ownerless()

    async def attach(self, sandbox_id: str) -> RockSandbox:
        """Attach to any sandbox of this user, also to one that a killed run has left and the next start on that run's
        machine has not removed yet."""
        box = await attach(self, headers_of(self.config), sandbox_id)
        box.spec = box.spec.model_copy(update={"labels": visible(box.spec.labels)})
        return box

    async def snapshots(self) -> builtins.list[str]:
        """List the snapshots of this user at the service, whichever machine made them."""
        async with self._asked():
            return await self.own_snapshots.names()

    async def remove_snapshot(self, name: str) -> None:
        async with self._asked():
            await self.own_snapshots.remove(name)

    async def image_from(self, build: ImageBuild) -> str:
        async with self._asked():
            return await self._builds.image_from(build)

    async def build_image(self, name: str | None = None, *, python: bool = False) -> str:
        async with self._asked():
            return await self._builds.small_image(name, python)

    @asynccontextmanager
    async def _asked(self) -> AsyncIterator[None]:
        """Close the connections afterwards if the provider was not started."""
        try:
            yield
        finally:
            if not self._running and not self._sandboxes:
                await self.client.close()

    async def _entries(self) -> builtins.list[dict[str, Any]]:
        found: builtins.list[dict[str, Any]] = (await self.client.json("GET", f"{ALE}/sandboxes"))["sandboxes"]
        return found

    async def _remove(self, sandbox_id: str) -> None:
        try:
            await self.client.json("DELETE", f"{ALE}/sandboxes/{quote(as_bytes(sandbox_id), safe='')}")
        except Missing:
            return

    async def remove_own(self, sandbox_id: str) -> None:
        """Remove a sandbox of this provider."""
        self._sandboxes.pop(sandbox_id, None)
        await self._remove(sandbox_id)

    async def _remove_quietly(self, sandbox_id: str) -> None:
        """Remove what a failed start may have left, but not another owner's sandbox of that id."""
        try:
            if any(each["id"] == sandbox_id and self._is_own(each["labels"]) for each in await self._entries()):
                await self._remove(sandbox_id)
        except (ConfigError, SandboxError):
            return  # the next start removes it

    def _is_own(self, labels: Mapping[str, str]) -> bool:
        return labels.get(OWNER) == self._owner

    async def _remove_ownerless(self) -> builtins.list[str]:
        gone = []
        for each in await self._entries():
            machine, _, rest = each["labels"].get(OWNER, "").partition("/")
            if machine == this_machine() and not is_running(rest.partition("/")[0]):
                await self._remove(each["id"])
                gone.append(each["id"])
        return gone


def asks_for_this_machine(spec: SandboxSpec) -> bool:
    """Whether programs in the sandbox need a model endpoint that only this machine reaches."""
    if spec.endpoint is None or spec.network == "none":
        return False
    address = endpoint_address(spec.endpoint)
    return isinstance(address, str) or address[0] in LOOPBACK


def visible(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels without the owner's."""
    return {name: value for name, value in labels.items() if name != OWNER}
