"""The engine: one thread that steps the scheduler, and asyncio on the other side.

1. Requests, cancellations and control calls (weights, pause) reach the thread as *commands* through a queue; the thread
   runs them between two steps. Without work it waits for the queue.
2. Generations that finish in a step are collected and go back with one `call_soon_threadsafe` for each event loop.
3. If a step fails, the requests in the engine fail; the engine drops its cache and continues. When the thread has
   ended, commands still in the queue get an error, so that no caller waits for ever.

torch is imported by `scheduler.py`, which the constructor imports: so settings are checked without torch, and two
threads never import it at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from ale.errors import ConfigError, EngineError
from ale.specs.driver import Driver, DriverContext
from ale.specs.engine import (
    FolderTicket,
    GenerateRequest,
    Generation,
    InferenceEngine,
    MemoryTicket,
    PolicyVersion,
    Tokenizer,
)
from ale_engine_torch.dtypes import Precision

if TYPE_CHECKING:
    from ale_engine_torch.scheduler import Scheduler

Command = Callable[[EngineError | None], None]
"""Work for the thread; its argument is None, or the error with which the thread has ended."""


class TorchEngine(Driver, InferenceEngine):
    """The engine `torch`."""

    api_version = ">=1.0,<1.2"
    capabilities = frozenset({"real_tokens"})
    transports = ("memory", "folder")

    class Config(Precision):
        """Settings of the engine `torch`."""

        max_batch: int = Field(
            64,
            gt=0,
            description="Slots: sessions whose contexts are kept, and requests that run at the same time.",
        )
        max_context: int = Field(
            2048, gt=1, description="Tokens per slot; the model's own limit applies if it is lower."
        )
        device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto takes a GPU if there is one.")
        threads: int = Field(0, ge=0, description="CPU threads that the engine computes with; 0: torch's own choice.")

    config: Config

    def __init__(self, config: Any, context: DriverContext) -> None:
        from ale_engine_torch.scheduler import Counters

        super().__init__(config, context)
        self._scheduler: Scheduler | None = None
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._outbox: list[tuple[asyncio.AbstractEventLoop, Callable[[], None]]] = []
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # nothing enters the inbox once `_ended_by` is set
        self._ended_by: EngineError | None = EngineError("The engine 'torch' has not been started.")
        self._stopping = self._paused = False
        self._requests = 0
        self._counters = Counters()
        self._max_context = self.config.max_context
        self._version = 0

    @property
    def max_context(self) -> int:
        """Most tokens (prompt and response) of one request."""
        return self._max_context

    @property
    def version(self) -> int:
        """The version of the weights in use."""
        return self._version

    async def start(self) -> None:
        """Start the thread."""
        import torch

        if self.config.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError(
                "engine.device: 'cuda' was asked for, but torch finds no GPU. Set engine.device to auto or cpu, "
                "or install a build of torch for your GPU."
            )
        self._ended_by, self._stopping, self._paused = None, False, False
        self._thread = threading.Thread(target=self._run, name="ale-engine", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """End the thread after the current step; queued requests fail with `EngineError`."""
        if self._thread is None:
            return
        thread, self._thread = self._thread, None

        def stop(ended_by: EngineError | None) -> None:
            self._stopping = True

        with contextlib.suppress(EngineError):
            self._send_command(stop)
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, thread.join))

    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        """See `InferenceEngine.load_model`. What the engine was generating fails."""
        if folder is None:
            raise ConfigError("engine: 'torch' needs a model; give model.path or model.scratch.")

        def load() -> None:
            import torch

            from ale_engine_torch.load_decoder import load_decoder
            from ale_engine_torch.scheduler import Scheduler

            name = self.config.device
            device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
            slots = self.config.max_batch
            c = self.config
            decoder = load_decoder(folder, slots, c.max_context, device, c.dtype, c.quantization)
            if self._scheduler is not None:
                self._scheduler.fail_all(EngineError("The engine's model was replaced while it generated; try again."))
            self._scheduler = Scheduler(decoder, slots, self._counters, c.logit_noise)
            self._max_context, self._version = decoder.max_context, 0

        await self._run_in_thread(load)

    async def load_weights(self, policy: PolicyVersion) -> None:
        """See `InferenceEngine.load_weights`."""
        from ale_engine_torch.load_decoder import read_weights

        match policy.ticket:
            case MemoryTicket(weights):
                named = dict(weights)
            case FolderTicket(folder):
                named = await asyncio.to_thread(read_weights, folder)
            case other:
                raise EngineError(
                    f"The engine 'torch' takes weights by {' or '.join(self.transports)}; policy version "
                    f"{policy.version} comes by '{other.transport}'."
                )

        def replace() -> None:
            scheduler = self._require_scheduler()
            scheduler.decoder.load(named)
            scheduler.weights_changed(policy.version)
            self._version = policy.version

        await self._run_in_thread(replace)

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `InferenceEngine.generate`."""
        from ale_engine_torch.scheduler import Job

        self._check_request(request)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Generation] = loop.create_future()

        def deliver(result: Generation | BaseException) -> None:
            self._outbox.append((loop, lambda: _set_future(future, result)))

        self._requests += 1
        seed = request.sampling.seed
        # Without a seed of its own a request gets one from the run's seed and its number.
        job = Job(request, deliver, self.context.seed * 1_000_003 + self._requests if seed is None else seed)

        def submit(ended_by: EngineError | None) -> None:
            try:
                if ended_by is not None:
                    raise ended_by
                self._require_scheduler().submit(job)
            except Exception as error:
                deliver(error if isinstance(error, EngineError) else _engine_error("could not take a request", error))

        def cancel(ended_by: EngineError | None) -> None:
            if ended_by is None and self._scheduler is not None:
                self._scheduler.cancel(job)

        self._send_command(submit)
        try:
            return await future
        except asyncio.CancelledError:
            with contextlib.suppress(EngineError):
                self._send_command(cancel)
            raise

    async def pause(self) -> None:
        """Finish the current step, then wait."""
        await self._run_in_thread(lambda: setattr(self, "_paused", True))

    async def resume(self) -> None:
        """Go on."""
        await self._run_in_thread(lambda: setattr(self, "_paused", False))

    def metrics(self) -> dict[str, float]:
        """Return counters since the start. `cached_prompt_tokens` are those of `prompt_tokens` that were not computed
        again; `busy_s` is `prefill_s` + `decode_s`; `slot_use` is the mean share of the slots that decoded in a step.
        """
        counters = asdict(self._counters)
        active, steps = counters.pop("active_sum"), counters["steps"]
        counters["slot_use"] = active / (steps * self.config.max_batch) if steps else 0.0
        counters["busy_s"] = counters["prefill_s"] + counters["decode_s"]
        return counters

    # -- from the event loop to the thread ---------------------------------------------------------------------

    def _check_request(self, request: GenerateRequest) -> None:
        length = len(request.token_ids)
        if length == 0:
            raise EngineError("The engine 'torch' was given an empty prompt; a prompt has at least one token.")
        if length >= self._max_context:
            raise EngineError(
                f"A prompt of {length} tokens cannot be answered in a context of {self._max_context}. Raise "
                "engine.max_context (and the model's own limit), or let the agent shorten its context sooner."
            )
        if request.sampling.max_tokens < 1:
            raise EngineError(f"max_tokens must be at least 1, not {request.sampling.max_tokens}.")

    def _send_command(self, command: Command) -> None:
        with self._lock:
            if self._ended_by is not None:
                raise EngineError(*self._ended_by.args)
            self._inbox.put(command)

    async def _run_in_thread(self, work: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def command(ended_by: EngineError | None) -> None:
            result: BaseException | None = ended_by
            if result is None:
                try:
                    work()
                except Exception as error:
                    result = error
            self._outbox.append((loop, lambda: _set_future(future, result)))

        self._send_command(command)
        await future

    # -- the thread --------------------------------------------------------------------------------------------

    def _require_scheduler(self) -> Scheduler:
        if self._scheduler is None:
            raise EngineError("The engine 'torch' has no model yet; call load_model first.")
        return self._scheduler

    def _run(self) -> None:
        end = EngineError("The engine was closed.")
        try:
            if self.config.threads:
                import torch

                torch.set_num_threads(self.config.threads)
            while not self._stopping:
                self._run_once()
        except BaseException as error:  # unexpected, but requests must still get an error
            end = _engine_error("died", error)
        finally:
            with self._lock:
                self._ended_by = end
            self._read_inbox(end)
            if self._scheduler is not None:
                self._scheduler.fail_all(end)
                self._scheduler = None  # gives the cache's memory back
            self._deliver_results()

    def _run_once(self) -> None:
        """Run the commands that have arrived (wait for one where there is nothing else to do), then a step."""
        if self._paused or self._scheduler is None or not self._scheduler.busy:
            self._inbox.get()(None)
        self._read_inbox(None)
        scheduler = self._scheduler
        if scheduler is not None and scheduler.busy and not self._paused and not self._stopping:
            try:
                scheduler.step()
            except Exception as error:
                scheduler.fail_all(_engine_error("failed in a step", error))
        self._deliver_results()

    def _read_inbox(self, ended_by: EngineError | None) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._inbox.get_nowait()(ended_by)

    def _deliver_results(self) -> None:
        """Hand finished generations over, with one wake-up for each event loop."""
        done, self._outbox = self._outbox, []
        for loop in {id(loop): loop for loop, _ in done}.values():
            calls = [call for owner, call in done if owner is loop]
            with contextlib.suppress(RuntimeError):  # that loop has been closed: nobody waits any more
                loop.call_soon_threadsafe(_call_all, calls)


def _set_future(future: asyncio.Future[Any], result: Any) -> None:
    """Set a future's result or exception, unless it was cancelled."""
    if future.done():
        return
    if isinstance(result, BaseException):
        future.set_exception(result)
    else:
        future.set_result(result)


def _call_all(calls: list[Callable[[], None]]) -> None:
    for call in calls:
        call()


def _engine_error(what: str, error: BaseException) -> EngineError:
    reason = str(error) or type(error).__name__
    failure = EngineError(f"The engine 'torch' {what}: {reason}")
    failure.__cause__ = error
    return failure
