"""The engine: one thread that steps the scheduler, and asyncio on the other side.

Requests, cancellations and control calls (weights, pause) reach the thread through a queue and are looked at between
two steps. Finished generations go back with `call_soon_threadsafe`. Without work the thread sleeps on the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field

from ale.errors import ConfigError, EngineError
from ale.specs.driver import DriverContext, PluginConfig
from ale.specs.engine import GenerateRequest, Generation, InferenceEngine, PolicyVersion, Tokenizer
from ale_engine_torch.load import load_decoder
from ale_engine_torch.scheduler import Job, Scheduler


class TorchEngine(InferenceEngine):
    """The engine `torch`."""

    capabilities = frozenset({"real_tokens", "weight_update_in_place"})

    class Config(PluginConfig):
        """Settings of the engine `torch`."""

        max_batch: int = Field(
            64, gt=0, description="Slots: sessions whose context is kept, and most requests at once."
        )
        max_context: int = Field(2048, gt=0, description="Tokens of one slot; the model's own limit, if that is less.")
        device: str = Field("auto", description="auto, cpu or cuda.")
        dtype: Literal["float32", "bfloat16"] = Field("float32", description="Type of weights and cache.")
        threads: int = Field(0, ge=0, description="CPU threads of the engine's thread; 0: torch's own choice.")

    config: Config

    def __init__(self, config: Any, context: DriverContext) -> None:
        super().__init__(config, context)
        self._scheduler: Scheduler | None = None
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopping = self._paused = False
        self._requests = 0
        self._max_context = config.max_context
        self._version = 0
        cuda = torch.cuda.is_available()
        self._device = torch.device(("cuda" if cuda else "cpu") if config.device == "auto" else config.device)

    @property
    def max_context(self) -> int:
        """Most tokens (prompt and response) of one request."""
        return int(self._max_context)

    @property
    def version(self) -> int:
        """The version of the weights in use."""
        return self._version

    async def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._loop, name="ale-engine", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """End the thread after the step under way; what is still queued fails with `EngineError`."""
        if self._thread is None:
            return
        thread, self._thread = self._thread, None

        def stop() -> None:
            self._stopping = True

        self._inbox.put(stop)
        await asyncio.get_running_loop().run_in_executor(None, thread.join)
        self._scheduler = None

    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        """See `InferenceEngine.load_model`."""
        if folder is None:
            raise ConfigError("engine: 'torch' needs a model; give model.path or model.scratch.")
        dtype = getattr(torch, self.config.dtype)

        def load() -> None:
            decoder = load_decoder(folder, self.config.max_batch, self.config.max_context, self._device, dtype)
            self._scheduler = Scheduler(decoder, self.config.max_batch, self._device)
            self._max_context, self._version = decoder.max_context, 0

        await self._in_thread(load)

    async def load_weights(self, policy: PolicyVersion) -> None:
        """See `InferenceEngine.load_weights`; takes them from memory."""
        weights = policy.weights
        if weights is None:
            raise EngineError("The engine 'torch' takes weights from memory; this policy version has none.")

        def swap() -> None:
            scheduler = self._ready()
            scheduler.decoder.load(weights)
            scheduler.weights_changed(policy.version)
            self._version = policy.version

        await self._in_thread(swap)

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `InferenceEngine.generate`."""
        if len(request.token_ids) >= self._max_context or not request.token_ids:
            raise EngineError(
                f"A prompt of {len(request.token_ids)} tokens cannot be answered in a context of {self._max_context}."
            )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Generation] = loop.create_future()

        def settle(result: Generation | BaseException) -> None:
            if future.done():
                return
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

        def deliver(result: Generation | BaseException) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody waits any more
                loop.call_soon_threadsafe(settle, result)

        self._requests += 1
        seed = request.sampling.seed
        # Without a seed of its own a request gets one from the run's seed and its number.
        job = Job(request, deliver, self.context.seed * 1_000_003 + self._requests if seed is None else seed)

        def submit() -> None:
            try:
                self._ready().submit(job)
            except EngineError as error:
                deliver(error)

        self._send(submit)
        try:
            return await future
        finally:
            job.cancelled = True

    async def pause(self) -> None:
        """Finish the step under way, then hold."""
        await self._in_thread(lambda: setattr(self, "_paused", True))

    async def resume(self) -> None:
        """Go on."""
        await self._in_thread(lambda: setattr(self, "_paused", False))

    def metrics(self) -> dict[str, float]:
        """Counters since the model was loaded, and `slot_use`: mean share of the slots that decoded in a step."""
        if self._scheduler is None:
            return {}
        counters = asdict(self._scheduler.counters)
        active, steps = counters.pop("active_sum"), counters["steps"]
        counters["slot_use"] = active / (steps * self.config.max_batch) if steps else 0.0
        counters["busy_s"] = counters["prefill_s"] + counters["decode_s"]
        return counters

    # -- the thread --------------------------------------------------------------------------------------------

    def _send(self, work: Callable[[], None]) -> None:
        if self._thread is None or not self._thread.is_alive():
            raise EngineError("The engine is closed.")
        self._inbox.put(work)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def settle(error: BaseException | None) -> None:
            if not future.done():
                future.set_result(None) if error is None else future.set_exception(error)

        def run() -> None:
            error: BaseException | None = None
            try:
                work()
            except Exception as problem:
                error = problem
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, error)

        self._send(run)
        await future

    def _ready(self) -> Scheduler:
        if self._scheduler is None:
            raise EngineError("The engine has no model yet.")
        return self._scheduler

    def _loop(self) -> None:
        if self.config.threads:
            torch.set_num_threads(self.config.threads)
        while not self._stopping:
            scheduler = self._scheduler
            busy = scheduler is not None and scheduler.busy and not self._paused
            self._read_inbox(wait=not busy)
            if busy and scheduler is self._scheduler and scheduler is not None and not self._stopping:
                try:
                    scheduler.step()
                except Exception as error:
                    failure = EngineError(f"The engine failed in a step: {type(error).__name__}: {error}")
                    failure.__cause__ = error
                    scheduler.fail_all(failure)
        if self._scheduler is not None:
            self._scheduler.fail_all(EngineError("The engine was closed."))

    def _read_inbox(self, *, wait: bool) -> None:
        with contextlib.suppress(queue.Empty):
            if wait:
                self._inbox.get()()
            while True:
                self._inbox.get_nowait()()
