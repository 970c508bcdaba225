"""Keeps the admin informed: registers the worker, then sends heartbeats.

1. A heartbeat goes out as often as the admin asks for, and at once when a sandbox has ended. The end of a sandbox is
   reported until the admin has confirmed it.
2. An admin that does not know the worker, because it restarted, makes it register again. If the admin refuses the
   worker because another one has its name, the worker ends; one that has sandboxes keeps trying.
3. An admin that does not answer is asked again; the sandboxes go on meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from itertools import islice
from typing import TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError

from ale.specs.driver import Driver, Lifecycle
from ale_rock.schemas import WORKERS_BASE, EndedSandbox, Fault, Heartbeat, HeartbeatAnswer, Register, Registered
from ale_rock.worker.command_routes import protocols_of
from ale_rock.worker.machine import capacity, cpu_load, disk_free_bytes, memory_used_bytes
from ale_rock.worker.service import WorkerService
from ale_rock.worker.settings import secret

log = logging.getLogger("ale.rock.worker")
ANSWER_S = 10.0
AGAIN_S = 1.0
"""How long to wait before a request that failed is sent again."""
FAREWELL_S = 2.0
ENDS_IN_BEAT = 100
"""Most ended sandboxes in one heartbeat; each comes with a log."""
SERVED_TRIES = 40
A = TypeVar("A", bound=BaseModel)


class AdminError(Exception):
    """The admin answered with an error, or with something that cannot be read."""


class RegistrationRefused(AdminError):
    """The admin refuses to register this worker, and says why."""


class Registration(Lifecycle):
    """The worker's side of the connection to the admin. `start` returns at once; the admin may come up later."""

    def __init__(self, service: WorkerService) -> None:
        self.service = service
        self._ended: dict[str, str] = {}
        """Ended sandboxes that the admin has not confirmed yet, and why each ended."""
        self._images_sent: set[str] = set()
        self._news = asyncio.Event()
        self._session: aiohttp.ClientSession | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        token = secret(self.service.settings.admin_token)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        self._session = aiohttp.ClientSession(headers=headers, timeout=timeout)
        self.service.on_ended = self._note
        self._task = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """Report that all sandboxes end with this worker, then stop."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self.service.worker_id is not None and self.service.ids:
            self._ended |= dict.fromkeys(self.service.ids, "its worker was stopped")
            with suppress(TimeoutError, aiohttp.ClientError, AdminError):
                async with asyncio.timeout(FAREWELL_S):
                    while self._ended and await self._beat(self.service.worker_id):
                        pass
        self.service.worker_id = None
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _note(self, sandbox_id: str, reason: str) -> None:
        self._ended[sandbox_id] = reason
        self._news.set()

    async def _keep(self) -> None:
        heartbeat_s = AGAIN_S
        silent = False
        await self._until_served()
        while True:
            try:
                if self.service.worker_id is None:
                    heartbeat_s = await self._register()
                elif not await self._beat(self.service.worker_id):
                    self.service.former_id, self.service.worker_id = self.service.worker_id, None
                    continue
                if silent:
                    log.warning("The admin answers again.")
                silent = False
            except (aiohttp.ClientError, TimeoutError, AdminError) as error:
                refused = self.service.on_refused
                if isinstance(error, RegistrationRefused) and not self.service.ids and refused is not None:
                    refused(f"The admin at {self.service.settings.admin_url} refuses this worker: {error}")
                    return
                if not silent:
                    log.warning("The admin at %s: %s", self.service.settings.admin_url, error or type(error).__name__)
                silent = True
                await asyncio.sleep(AGAIN_S)
                continue
            if not self._ended:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), heartbeat_s)

    async def _until_served(self) -> None:
        """Wait until this worker answers at its own URL, so that the admin finds it there."""
        assert self._session is not None
        url = f"{self.service.settings.url}/health"
        for _ in range(SERVED_TRIES):
            try:
                async with self._session.get(url) as response:
                    if response.status == 200:
                        return
            except (aiohttp.ClientError, TimeoutError):
                await asyncio.sleep(0.05)
        log.warning("This worker does not reach itself at %s; the admin must be able to.", url)

    async def _register(self) -> float:
        """Register, and return the seconds between heartbeats."""
        service, settings = self.service, self.service.settings
        has = capacity(settings)
        images = set(service.images)
        body = Register(
            name=settings.name,
            url=settings.url,
            token=secret(settings.token),
            provider=settings.provider_name,
            capabilities=sorted(service.provider.capabilities) if isinstance(service.provider, Driver) else None,
            protocols=protocols_of(service.provider),
            default_image=service.provider.default_image,
            cpus=has.cpus,
            memory_bytes=has.memory_bytes,
            disk_bytes=has.disk_bytes,
            gpus=has.gpus,
            images=sorted(images),
            sandboxes=service.ids,
        )
        answer = await self._post("register", body, Registered)
        self.service.worker_id, self._images_sent = answer.worker_id, images
        log.info("Registered at %s as %s.", settings.admin_url, answer.worker_id)
        return answer.heartbeat_s

    async def _beat(self, worker_id: str) -> bool:
        """Send a heartbeat, and return whether the admin knows this worker."""
        self._news.clear()
        ended, images = dict(islice(self._ended.items(), ENDS_IN_BEAT)), set(self.service.images)
        logs = await asyncio.gather(*map(self.service.logs.text, ended))
        body = Heartbeat(
            worker_id=worker_id,
            ended=[
                EndedSandbox(id=sandbox_id, reason=reason, log=log)
                for (sandbox_id, reason), log in zip(ended.items(), logs, strict=True)
            ],
            images=None if images == self._images_sent else sorted(images),
            memory_used_bytes=memory_used_bytes(self.service.settings.memory_bytes),
            disk_free_bytes=disk_free_bytes(self.service.settings),
            cpu_load=cpu_load(),
            warm=self.service.warm.count,
        )
        answer = await self._post("heartbeat", body, HeartbeatAnswer)
        if answer.known:
            self._images_sent = images
            for sandbox_id in ended:
                self._ended.pop(sandbox_id, None)
        return answer.known

    async def _post(self, what: str, body: BaseModel, answer: type[A]) -> A:
        assert self._session is not None
        url = f"{(self.service.settings.admin_url or '').rstrip('/')}{WORKERS_BASE}/{what}"
        data = body.model_dump_json(exclude_none=True)
        async with self._session.post(url, data=data, headers={"Content-Type": "application/json"}) as response:
            text = await response.read()
            if response.status == 400 and what == "register":
                raise RegistrationRefused(read_detail(text))
            if response.status != 200:
                raise AdminError(f"it answered {what} with the HTTP status {response.status}: {read_detail(text)}")
        try:
            return answer.model_validate_json(text)
        except ValidationError as error:
            raise AdminError(f"its answer to {what} is not valid: {error}") from None


def read_detail(text: bytes) -> str:
    """Return the sentence of an admin's error."""
    try:
        return Fault.model_validate_json(text).detail
    except ValidationError:
        return repr(text[:300])
