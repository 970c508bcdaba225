"""A replica that is a server: ALE starts its process and speaks HTTP with it, or finds it at a URL.

1. `load_model` starts the server with the model, waits until it answers, and checks its release. A server at a URL has
   its model already; it loads the folder as new weights.
2. `generate` holds one of `max_batch` places, so that nothing waits inside the server. A server that goes away, or
   aborts, ends it with `Interrupted` and what it has sent until then.
3. `load_weights` looks at the new weights before it touches the server; afterwards the fingerprint of what the server
   holds must be that of what was sent. A server that may hold something else serves no more (`check` raises) until it
   has been started again, or has loaded another version.

A subclass says how its server is started and asked (the abstract methods).
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import ClassVar
from uuid import uuid4

from ale.errors import EngineError
from ale.specs.driver import DriverContext
from ale.specs.engine import FolderTicket, GenerateRequest, Generation, MemoryTicket, PolicyVersion, Ticket, Tokenizer
from ale_engines import fingerprint
from ale_engines.client import ConnectionLost, ServerClient
from ale_engines.continuation import NOTHING
from ale_engines.lora import whole_model
from ale_engines.model_folder import ModelFolder, read_model_folder, read_shapes
from ale_engines.replica import Interrupted, Replica
from ale_engines.sampled import Sampled
from ale_engines.server_launch import (
    Launch,
    check_release,
    check_request,
    choose_log,
    choose_python,
    has_gpu,
    make_environment,
    make_launch,
)
from ale_engines.server_process import ServerProcess
from ale_engines.server_settings import ServerSettings
from ale_engines.shared_memory import write_tensors
from ale_engines.usage import Usage

POLL_S = 0.1
"""Seconds between two questions whether a server that starts is ready."""
DYING_S = 1.0
"""Seconds for which a lost connection waits to learn how the process ended."""


class ServerReplica(Replica):
    """One server. The subclass is written for the releases `versions[0] <= release < versions[1]`."""

    server: ClassVar[str]
    """The plugin's name, such as `vllm`."""
    versions: ClassVar[tuple[str, str]]

    def __init__(self, settings: ServerSettings, context: DriverContext, number: int = 0) -> None:
        self.settings = settings
        self.context = context
        self.number = number
        self.url = settings.urls[number] if settings.urls else ""
        self.client = ServerClient(self.name, self.url or "http://localhost")
        self.launch: Launch | None = None
        self.model: ModelFolder | None = None
        self.process: ServerProcess | None = None
        """The server's process, where ALE started it."""
        self._log: tuple[Path, bool] | None = None
        self._fault = f"{self.name} has no model yet; call load_model first."
        self._version = 0
        self._updating = asyncio.Lock()
        self._places = asyncio.Semaphore(settings.max_batch)
        self._requests = self._interruptions = 0
        self._running: set[str] = set()
        self.usage = Usage(settings.max_batch)
        self._server_metrics: dict[str, float] = {}
        self.group = uuid4().hex  # the server's name at a trainer that broadcasts; new for each process
        self.transports = ("folder",) if self.url else ("memory", "folder")

    # -- what a subclass says ----------------------------------------------------------------------------------

    @abstractmethod
    def find_python(self) -> Path | None:
        """The Python that has the server, if `python` is not set; None if there is none."""

    @abstractmethod
    def make_argv(self, launch: Launch) -> list[str]:
        """The server's command line, without `arguments` of the settings."""

    def make_own_environment(self, launch: Launch) -> Mapping[str, str]:
        """Environment variables that the server needs."""
        return {}

    @abstractmethod
    def make_client(self, launch: Launch) -> ServerClient:
        """A client for the server that `make_argv`, called before, starts."""

    @abstractmethod
    async def ask_release(self) -> str:
        """The server's release, once it serves. Raises `ConnectionLost` while it does not."""

    @abstractmethod
    async def sample(self, request: GenerateRequest, max_tokens: int, request_id: str, sampled: Sampled) -> str:
        """Let the server sample at most `max_tokens`, and add each part to `sampled` as soon as it comes. Returns how
        the generation ended: `stop`, `length`, or the server's own word for anything else."""

    @abstractmethod
    async def abort(self, request_ids: list[str]) -> None:
        """Let the server end these requests, with what they have sampled; those that it does not know are no error."""

    @abstractmethod
    async def send_folder(self, folder: Path, version: int) -> None:
        """Let the server load a whole model's weights as a version; it goes on with its requests afterwards, and
        computes nothing with prefixes that other weights computed."""

    async def send_ticket(self, ticket: Ticket, version: int) -> Mapping[str, int]:
        """Let the server fetch weights by another of `transports`; returns the fingerprint of what was sent."""
        raise self._refuse_ticket(ticket, version)

    @abstractmethod
    async def ask_fingerprint(self) -> Mapping[str, int]:
        """The fingerprint (`fingerprint.py`) of the weights that the server holds at this moment."""

    async def ask_metrics(self) -> dict[str, float]:
        """The server's own counters, under names that begin with `server_`."""
        return {}

    # -- the contract ------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """See `Replica.name`."""
        return f"{self.server} {self.number}"

    @property
    def slots(self) -> int:
        """See `Replica.slots`."""
        return self.settings.max_batch

    @property
    def version(self) -> int:
        """See `InferenceEngine.version`."""
        return self._version

    @property
    def max_context(self) -> int:
        """See `InferenceEngine.max_context`."""
        wanted = self.settings.max_context
        return self.model.max_context(wanted) if self.model is not None else wanted

    async def start(self) -> None:
        """Raise `ConfigError` now, and not after the demonstrations, if there is nothing that could be started."""
        if not self.url:
            choose_python(self.settings.python or self.find_python(), self.server)

    async def close(self) -> None:
        """End the server and remove its folders."""
        self._fault = f"{self.name} was closed."
        await self._end_server()
        log, self._log = self._log, None
        if log is not None and log[1]:
            log[0].unlink(missing_ok=True)

    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        """See `InferenceEngine.load_model`: the server is started, or started again, with it."""
        async with self._updating:
            self.model = await asyncio.to_thread(read_model_folder, folder, self.server)
            await self._serve_model(self.model)

    async def restart(self) -> None:
        """See `Replica.restart`."""
        async with self._updating:
            if self.model is None:
                raise EngineError(f"{self.name} has had no model yet; call load_model first.")
            await self._serve_model(self.model)

    async def check(self) -> None:
        """See `Replica.check`; it also fetches the server's metrics."""
        if self._fault:
            raise EngineError(self._fault)
        try:
            self._server_metrics = await self.ask_metrics()
        except ConnectionLost as error:
            raise EngineError(await self._describe_loss(error)) from None

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `Replica.generate`."""
        room = self.max_context - len(request.token_ids)
        check_request(request, room, self.name)
        interruptions = self._interruptions
        async with self._places:
            if self._fault or interruptions != self._interruptions:
                raise Interrupted(self._fault or f"{self.name} was interrupted before it began.", NOTHING)
            self._requests += 1
            request_id = f"{self.number}-{self._requests}"
            self._running.add(request_id)
            sampled = Sampled(self.name)
            try:
                with self.usage.running(len(request.token_ids)):
                    reason = await self.sample(request, min(request.sampling.max_tokens, room), request_id, sampled)
            except ConnectionLost as error:
                raise Interrupted(await self._describe_loss(error), sampled.as_generation()) from None
            finally:
                self._running.discard(request_id)
                self.usage.sampled_tokens += len(sampled)
        if reason not in ("stop", "length"):
            text = f"{self.name} ended a generation after {len(sampled)} tokens ({reason})."
            raise Interrupted(text, sampled.as_generation())
        return sampled.as_generation("stop" if reason == "stop" else "length")

    async def interrupt(self) -> None:
        """See `Replica.interrupt`. It returns when all have ended."""
        self._interruptions += 1
        before = set(self._running)
        while left := before & self._running:
            # Again and again: a request may have been sent that the server has not read yet.
            await self.abort(sorted(left))
            await asyncio.sleep(0.02)

    async def load_weights(self, policy: PolicyVersion) -> None:
        """See `InferenceEngine.load_weights`. A folder may be a LoRA adapter for the model of `load_model`."""
        async with self._updating:
            if self.process is None and not self.url:
                raise EngineError(self._fault or f"{self.name} is not running.")
            if policy.ticket.transport not in self.transports:
                raise self._refuse_ticket(policy.ticket, policy.version)
            match policy.ticket:
                case MemoryTicket(weights):
                    assert self.launch is not None
                    folder = self.launch.weights / str(policy.version)
                    try:
                        await asyncio.to_thread(write_tensors, weights, folder)
                        await self._load_folder(folder, policy.version)
                    finally:
                        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
                case FolderTicket(folder):
                    await self._load_folder(folder, policy.version)
                case ticket:
                    await self._replace(lambda: self.send_ticket(ticket, policy.version), policy.version)

    def metrics(self) -> dict[str, float]:
        """Return counters of this client and, under names that begin with `server_`, those of the server as of the last
        `check`."""
        return {**self.usage.metrics(), **self._server_metrics}

    # -- the server --------------------------------------------------------------------------------------------

    async def _serve_model(self, model: ModelFolder) -> None:
        await self._end_server()
        self._fault = f"{self.name} has not been started."
        try:
            if self.url:
                await self.client.start()
                check_release(await self.ask_release(), self.versions, self.name)
                await self._load_folder(model.folder, 0)
            else:
                await self._start_server(model)
        except BaseException:
            await self._end_server()
            raise
        self._version, self._fault = 0, ""

    async def _start_server(self, model: ModelFolder) -> None:
        python = choose_python(self.settings.python or self.find_python(), self.server)
        self._log = self._log or choose_log(self.context, self.name.replace(" ", "-"))
        launch = self.launch = await asyncio.to_thread(make_launch, python, self.settings, model, self.server)
        argv = [*self.make_argv(launch), *self.settings.arguments]
        environment = make_environment(launch, self.settings, self.number, self.make_own_environment(launch))
        self.process = ServerProcess(argv, environment, self._log[0], self.name, launch.leftovers)
        self.client, self.group = self.make_client(launch), uuid4().hex
        await self.process.start()
        await self.client.start()
        check_release(await self._wait_ready(self.process), self.versions, self.name)

    async def _wait_ready(self, process: ServerProcess) -> str:
        try:
            async with asyncio.timeout(self.settings.start_timeout_s):
                while process.running:
                    with contextlib.suppress(ConnectionLost):
                        return await self.ask_release()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(process.wait_ended(), POLL_S)
        except TimeoutError:
            raise EngineError(
                f"{self.name} did not get ready within {self.settings.start_timeout_s:g} s (engine.start_timeout_s). "
                f"The end of its log:\n{process.log_tail()}"
            ) from None
        raise EngineError(self._describe_end())

    async def _end_server(self) -> None:
        process, self.process = self.process, None
        await self.client.close()
        if process is not None:
            await process.close()
        launch, self.launch = self.launch, None
        if launch is not None:
            await asyncio.to_thread(launch.remove_folders)

    def _describe_end(self) -> str:
        assert self.process is not None
        where = f" ({self._log[0]})" if self._log is not None and not self._log[1] else ""
        return f"{self.name} {self.process.ended}. The end of its log{where}:\n{self.process.log_tail()}"

    async def _describe_loss(self, error: ConnectionLost) -> str:
        if self.process is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait_ended(), DYING_S)
        return self._describe_end() if self.process is not None and not self.process.running else str(error)

    # -- weights -----------------------------------------------------------------------------------------------

    def _refuse_ticket(self, ticket: Ticket, version: int) -> EngineError:
        ways = " or ".join(self.transports)
        return EngineError(
            f"{self.name} takes weights by {ways}; policy version {version} comes by '{ticket.transport}'."
        )

    async def _load_folder(self, given: Path, version: int) -> None:
        assert self.model is not None
        model, launch = self.model, self.launch
        dtype = model.dtype(self.settings.dtype, launch.cuda if launch else has_gpu())
        async with whole_model(given, model.folder, launch.weights if launch else None) as folder:
            model.check_same(await asyncio.to_thread(read_shapes, folder), f"The tensors in {given}")

            async def send() -> Mapping[str, int]:
                summing = asyncio.ensure_future(asyncio.to_thread(fingerprint.of_folder, folder, dtype, model.tied))
                try:
                    await self.send_folder(folder, version)
                finally:
                    await asyncio.wait([summing])  # it reads the folder, which may vanish afterwards
                return summing.result()

            await self._replace(send, version)

    async def _replace(self, send: Callable[[], Awaitable[Mapping[str, int]]], version: int) -> None:
        """Replace the weights; if that fails, the server may hold anything, and serves no more."""
        try:
            sent = await send()
            fingerprint.compare(sent, await self.ask_fingerprint(), self.name)
        except BaseException as error:
            self._fault = (
                f"{self.name} must be started again: its weights could not be replaced ({error or 'cancelled'})."
            )
            raise
        self._version, self._fault = version, ""
