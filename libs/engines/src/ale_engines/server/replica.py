"""A replica that is a server: ALE starts its process and speaks HTTP with it, or finds it at a URL.

1. `load_model` starts the server with the model, waits until it answers, and checks its release and its weights. A
   server at a URL has its model already; it is waited for as well, and loads the folder as new weights.
2. `generate` holds one of `max_batch` places, so that nothing waits inside the server. A server that goes away, or
   aborts, ends it with `Interrupted` and what it has sent until then.
3. `load_weights` looks at the new weights before it touches the server; afterwards the fingerprint of what the server
   holds must be that of what was sent. A server that may hold something else serves no more (`check` raises) until it
   has been started again, or has loaded another version.
4. A server that does not answer `check` in time may be busy with what it was asked: it has failed once it was silent
   for `SILENCE_S`. One that has nothing to do has failed at once.

A subclass says how its server is started and asked (`contract.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO
from uuid import uuid4

from ale.errors import ConfigError, EngineError
from ale.specs.driver import DriverContext
from ale.specs.engine import FolderTicket, GenerateRequest, Generation, MemoryTicket, PolicyVersion, Sampling, Tokenizer
from ale_engines.pool.continuation import NOTHING
from ale_engines.pool.replica import Interrupted, Replica
from ale_engines.server.contract import ServerContract
from ale_engines.server.http_client import ConnectionLost, NoAnswer, ServerClient
from ale_engines.server.launch import (
    Launch,
    check_release,
    check_request,
    check_setup,
    choose_log,
    choose_python,
    describe_devices,
    make_environment,
    make_launch,
)
from ale_engines.server.metrics import ServerMetrics, Usage
from ale_engines.server.model_folder import ModelFolder, read_model_folder, read_shapes
from ale_engines.server.process import ServerProcess
from ale_engines.server.rotary_positions import check_rotary_positions
from ale_engines.server.sampled_tokens import Sampled
from ale_engines.server.settings import ServerSettings
from ale_engines.weights import fingerprint
from ale_engines.weights.expert_names import use_model_names
from ale_engines.weights.fingerprint import Fingerprint
from ale_engines.weights.lora import whole_model
from ale_engines.weights.shared_memory import write_tensors

POLL_S = 0.1
"""Seconds between two questions whether a server that starts is ready."""
DYING_S = 5.0
"""Seconds for which a lost connection waits to learn how the process ended."""
TRIAL = 40
"""Tokens that a new server is given to compute: more than a block of its cache."""
SILENCE_S = 300.0
"""Seconds without an answer to a check after which a busy server has failed: a step over long prompts takes a CPU
half a minute, and a machine may be busy with other things."""


class ServerReplica(ServerContract, Replica):
    """One server. See the module."""

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
        self._log: tuple[Path, IO[bytes] | None] | None = None
        self._fault = f"{self.name} has no model yet; call load_model first."
        self._version = 0
        self._updating = asyncio.Lock()
        self._places = asyncio.Semaphore(settings.max_batch)
        self._requests = self._interruptions = 0
        self._running: dict[str, tuple[GenerateRequest, Sampled]] = {}
        self.usage = Usage(settings.max_batch)
        self._server_metrics = ServerMetrics()
        self._answered = time.monotonic()  # when it last answered a check
        self._unseeded = 0
        self._devices = ""
        self._layout: dict[tuple[str, int], bool] = {}  # in which order this process holds its weights
        self.dtype = ""
        """The type of the server's weights, once it runs."""
        self.group = uuid4().hex
        """The server's name at a trainer that broadcasts, new for each process, and what its requests' begin with."""
        self.transports = ("folder",) if self.url else ("memory", "folder")

    # -- the contract ------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return f"{self.server} {self.number}"

    @property
    def slots(self) -> int:
        return self.settings.max_batch

    @property
    def place(self) -> str:
        """The devices of a server that ALE has started."""
        return self._devices

    @property
    def version(self) -> int:
        return self._version

    @property
    def max_context(self) -> int:
        wanted = self.settings.max_context
        return self.model.max_context(wanted) if self.model is not None else wanted

    async def start(self) -> None:
        """Raise `ConfigError` now, and not after the demonstrations, if there is nothing that could be started."""
        if not self.url:
            _, self.device = choose_python(self.settings, self.find_python, self.server)

    async def close(self) -> None:
        """End the server and remove its folders."""
        self._fault = f"{self.name} was closed."
        await self._end_server()
        log, self._log = self._log, None
        if log is not None and log[1] is not None:
            log[1].close()

    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        """The server is started, or started again, with it."""
        async with self._updating:
            self.model = await asyncio.to_thread(read_model_folder, folder, self.server)
            self.check_model(self.model)
            await self._serve_model(self.model)

    async def restart(self) -> None:
        async with self._updating:
            if self.model is None:
                raise EngineError(f"{self.name} has had no model yet; call load_model first.")
            await self._serve_model(self.model)

    async def check(self) -> None:
        """It also fetches the server's metrics."""
        if self._fault:
            raise EngineError(self._fault)
        try:
            self._server_metrics.update(await self.ask_metrics())
            self._answered = time.monotonic()
        except ConnectionLost as error:
            lives = self.process is None or self.process.running
            busy = bool(self._running) or self._updating.locked()
            if isinstance(error, NoAnswer) and lives and busy and time.monotonic() - self._answered < SILENCE_S:
                return
            raise EngineError(await self._describe_loss(error)) from None

    async def generate(self, request: GenerateRequest) -> Generation:
        room = self.max_context - len(request.token_ids)
        check_request(request, room, self.name)
        interruptions = self._interruptions
        async with self._places:
            if self._fault or interruptions != self._interruptions:
                raise Interrupted(self._fault or f"{self.name} was interrupted before it began.", NOTHING)
            self._requests += 1
            request_id = f"{self.group}-{self._requests}"
            sampled = Sampled(self.name)
            self._running[request_id] = request, sampled
            try:
                with self.usage.running(len(request.token_ids)):
                    reason = await self.sample(request, min(request.sampling.max_tokens, room), request_id, sampled)
            except ConnectionLost as error:
                raise Interrupted(await self._describe_loss(error), sampled.as_generation()) from None
            finally:
                del self._running[request_id]
                self.usage.sampled_tokens += len(sampled)
        if reason not in ("stop", "length"):
            text = f"{self.name} ended a generation after {len(sampled)} tokens ({reason})."
            raise Interrupted(text, sampled.as_generation())
        return sampled.as_generation("stop" if reason == "stop" else "length")

    def sampled_so_far(self, request: GenerateRequest, after: int = 0) -> Generation:
        found = (sampled for asked, sampled in self._running.values() if asked is request)
        return next(found, Sampled(self.name)).as_generation(after=after)

    async def interrupt(self) -> None:
        """It returns when all have ended."""
        self._interruptions += 1
        before = set(self._running)
        while left := before & self._running.keys():
            # Again and again: a request may have been sent that the server has not read yet.
            await self.abort(sorted(left))
            await asyncio.sleep(0.02)

    async def load_weights(self, policy: PolicyVersion) -> None:
        """A folder may be a LoRA adapter for the model of `load_model`."""
        async with self._updating:
            if self.process is None and not self.url:
                raise EngineError(self._fault or f"{self.name} is not running.")
            if policy.ticket.transport not in self.transports:
                raise EngineError(
                    f"{self.name} takes weights by {' or '.join(self.transports)}; policy version {policy.version} "
                    f"comes by '{policy.ticket.transport}'."
                )
            match policy.ticket:
                case MemoryTicket(weights):
                    assert self.launch is not None
                    assert self.model is not None
                    folder, names = self.launch.weights / str(policy.version), self.model.shapes.keys()
                    try:
                        await asyncio.to_thread(write_tensors, weights, folder, names)
                        await self._load_folder(folder, policy.version)
                    finally:
                        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
                case FolderTicket(folder):
                    await self._load_folder(folder, policy.version)
                case ticket:
                    await self.check_ticket(ticket, policy.version)
                    await self._replace(lambda: self.send_ticket(ticket, policy.version), policy.version)

    def metrics(self) -> dict[str, float]:
        """Return counters of this client, and those of the server as of the last `check` (`server_...`)."""
        return {**self.usage.metrics(), **self._server_metrics.total()}

    def check_model(self, model: ModelFolder) -> None:
        """Raise `ConfigError` if the server would compute the model otherwise than transformers."""
        check_rotary_positions(model, self.max_context, self.server)

    def choose_seed(self, sampling: Sampling) -> int:
        """Return a request's seed, of 63 bits; one without gets one from the run's seed, the replica's number and its
        own, since servers would draw the same numbers after every start, and in every replica."""
        seed = sampling.seed
        if seed is None:
            self._unseeded += 1
            seed = (self.context.seed * 1_000_003 + self.number) * 1_000_003 + self._unseeded
        return seed % 2**63

    # -- the server --------------------------------------------------------------------------------------------

    async def _serve_model(self, model: ModelFolder) -> None:
        await self._end_server()
        self._fault = f"{self.name} has not been started."
        self._layout.clear()
        try:
            if self.url:
                await self._find_server(model)
            else:
                await self._start_server(model)
        except BaseException:
            await self._end_server()
            raise
        self._version, self._fault, self._answered = 0, "", time.monotonic()

    async def _find_server(self, model: ModelFolder) -> None:
        await self.client.start()
        await self._wait_ready(None)
        setup = await self.ask_setup()
        check_setup(setup, self.settings.dtype, self.max_context, self.name)
        self.dtype = setup.dtype
        await self._load_folder(model.folder, 0)
        await self.resume()  # an earlier user may have left it paused

    async def _start_server(self, model: ModelFolder) -> None:
        python, device = choose_python(self.settings, self.find_python, self.server)
        self._log = self._log or choose_log(self.context, self.name.replace(" ", "-"))
        launch = self.launch = await asyncio.to_thread(make_launch, python, device, self.settings, model, self.server)
        argv = [*self.make_argv(launch), *self.settings.arguments]
        environment = make_environment(launch, self.settings, self.number, self.make_own_environment(launch))
        self._devices = describe_devices(launch, self.settings, environment)
        process = self.process = ServerProcess(argv, environment, self._log[0], self.name, launch.leftovers)
        self.client, self.group, self.dtype = self.make_client(launch), uuid4().hex, launch.dtype
        async with fingerprint.summed_meanwhile(model.folder, launch.dtype, model.tied) as summing:
            await process.start()
            await self.client.start()
            await self._wait_ready(process)
            served = await self.ask_fingerprint()
        fingerprint.compare(summing.result(), served, self.name, self._layout)
        await self._try_model(model)

    async def _try_model(self, model: ModelFolder) -> None:
        """Let a new server sample: there are models that it can load and cannot compute."""
        length = max(1, min(TRIAL, self.max_context - 1))
        request = GenerateRequest((0,) * length, Sampling(max_tokens=1, seed=0))
        try:
            await self.sample(request, 1, f"{self.group}-0", Sampled(self.name))
        except EngineError as error:
            why = await self._describe_loss(error) if isinstance(error, ConnectionLost) else str(error)
            raise ConfigError(
                f"{self.name} has loaded the model in {model.folder} (of the type '{model.config.get('model_type')}') "
                f"and cannot compute it. Take another engine for it (`ale plugins list engine`). {why}"
            ) from None

    async def _wait_ready(self, process: ServerProcess | None) -> None:
        """Wait until the server answers, and check its release; `process` is None for one at a URL."""
        lost = ""
        try:
            async with asyncio.timeout(self.settings.start_timeout_s):
                while process is None or process.running:
                    try:
                        return check_release(await self.ask_release(), self.versions, self.name)
                    except ConnectionLost as error:
                        if process is None and not lost:
                            text = f"{error} It is waited for, up to {self.settings.start_timeout_s:g} s."
                            self.context.channel.event("note", text=text)
                        lost = str(error)
                    with contextlib.suppress(TimeoutError):
                        ended = process.wait_ended() if process else asyncio.sleep(POLL_S)
                        await asyncio.wait_for(ended, POLL_S)
        except TimeoutError:
            log = f"The end of its log:\n{process.log_tail()}" if process else lost
            raise EngineError(
                f"{self.name} did not get ready within {self.settings.start_timeout_s:g} s (engine.start_timeout_s). "
                f"{log}"
            ) from None
        folder = self.model.folder if self.model is not None else ""
        raise EngineError(
            f"{self.name} could not be started with the model in {folder}; if that is not one that {self.server} can "
            f"compute, take another engine for it. {self._describe_end()}"
        )

    async def _end_server(self) -> None:
        process, self.process = self.process, None
        self._server_metrics.end()
        await self.client.close()
        if process is not None:
            await process.close()
        launch, self.launch = self.launch, None
        if launch is not None:
            await asyncio.to_thread(launch.remove_folders)

    def _describe_end(self) -> str:
        assert self.process is not None
        where = f" ({self._log[0]})" if self._log is not None and self._log[1] is None else ""
        return f"{self.name} {self.process.ended}. The end of its log{where}:\n{self.process.log_tail()}"

    async def _describe_loss(self, error: ConnectionLost) -> str:
        if self.process is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait_ended(), DYING_S)
        return self._describe_end() if self.process is not None and not self.process.running else str(error)

    # -- weights -----------------------------------------------------------------------------------------------

    async def _load_folder(self, given: Path, version: int) -> None:
        assert self.model is not None
        model = self.model
        scratch = self.launch.weights if self.launch else None
        async with (
            whole_model(given, model.folder, scratch) as whole,
            use_model_names(whole, model.shapes.keys(), scratch) as folder,
        ):
            model.check_same(await asyncio.to_thread(read_shapes, folder), f"The tensors in {given}")

            async def send() -> Fingerprint:
                async with fingerprint.summed_meanwhile(folder, self.dtype, model.tied) as summing:
                    await self.send_folder(folder, version)
                return summing.result()

            await self._replace(send, version)

    async def _replace(self, send: Callable[[], Awaitable[Fingerprint]], version: int) -> None:
        """Replace the weights; if that fails, the server may hold anything, and serves no more."""
        try:
            sent = await send()
            fingerprint.compare(sent, await self.ask_fingerprint(), self.name, self._layout)
        except BaseException as error:
            self._fault = (
                f"{self.name} must be started again: its weights could not be replaced ({error or 'cancelled'})."
            )
            raise
        self._version, self._fault = version, ""
