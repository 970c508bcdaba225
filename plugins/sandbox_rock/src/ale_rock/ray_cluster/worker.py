"""The Ray actor that is a worker: it serves the sandboxes of its node at the node's address, until it is closed.

1. Its process owns the sandboxes, as that of `ale rock worker` does: they end with it, however it ends.
2. Ray ends it when the process that started it has ended, but not if Ray itself was lost, too. So it also ends by
   itself, when `look` has not been called for a while.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr

from ale.errors import AleError
from ale_rock.http.server import listener_at, show_messages, url_of
from ale_rock.worker.serve import build_provider, offering
from ale_rock.worker.settings import WorkerSettings

UNSEEN_S = 60.0
"""Seconds without a call of `look` after which an actor ends."""
log = logging.getLogger("ale.rock.worker")


@dataclass(frozen=True, slots=True)
class WorkerFault:
    """Why a worker does not serve, as a sentence; an exception would come back as one of Ray's."""

    sentence: str


class SandboxWorker:
    """The actor: a worker that serves at its node's address."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        """The contexts that `close` leaves."""
        self._starting: asyncio.Task[Any] | None = None
        self._refused: asyncio.Future[str] | None = None
        self._seen = 0.0
        self._watching: asyncio.Task[None] | None = None

    async def start(self, settings: WorkerSettings, own: dict[str, Any], address: str) -> str | WorkerFault:
        """Serve at a free port of this address, with these settings of the sandbox provider; returns the URL."""
        self._starting = asyncio.current_task()
        take_interrupts()
        try:
            listener = listener_at(address, 0)
            of_node = {"url": url_of(listener), "token": SecretStr(secrets.token_urlsafe(32))}
            settings = settings.model_copy(update=of_node)
            show_messages((settings.token, settings.admin_token))
            settings = settings.model_copy(update={"gpus": count_first_gpus(settings)})
            provider = build_provider(settings.provider_name, own)
            self._refused = await self._stack.enter_async_context(offering(provider, settings, listener))
        except (AleError, OSError) as error:
            return WorkerFault(str(error))
        self._seen = time.monotonic()
        self._watching = asyncio.create_task(self._end_when_unseen())
        return settings.url

    async def look(self) -> WorkerFault | None:
        """Return why it no longer serves, if the admin has refused it."""
        self._seen = time.monotonic()
        return WorkerFault(self._refused.result()) if self._refused is not None and self._refused.done() else None

    async def _end_when_unseen(self) -> None:
        while True:
            left_s = self._seen + UNSEEN_S - time.monotonic()
            if left_s <= 0:
                break
            await asyncio.sleep(left_s)
        log.warning("Nobody has looked at this worker for %g s; it ends.", UNSEEN_S)
        try:
            await self.close()
        finally:
            os._exit(1)  # Ray's own end of an actor may wait for a Ray that is gone

    async def close(self) -> None:
        """Stop its sandboxes and its server; if it has not started yet, it does not start."""
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait([self._starting])
        await self._stack.aclose()


def count_first_gpus(settings: WorkerSettings) -> int:
    """Return how many GPUs sandboxes may have: containers get the first ones, and only these may be promised."""
    import ray

    ids = [str(each) for each in ray.get_gpu_ids()]
    if set(ids) != {str(number) for number in range(len(ids))}:
        log.warning(
            "Ray gave the worker %s the GPUs %s. Containers get a machine's first GPUs, so its sandboxes have none: "
            "leave them to others by --worker-gpus 0.",
            settings.name,
            ", ".join(ids),
        )
        return 0
    return len(ids)


def take_interrupts() -> None:
    """Let SIGINT through to what this thread starts: Ray blocks it in its processes, and a program in a sandbox that
    inherits that could not be interrupted. Ctrl-C in a terminal does not reach a process group of its own."""
    with suppress(OSError):  # it leads a session
        os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
