"""The engine: one thread that steps the scheduler, and asyncio on the other side.

1. Requests, cancellations and control calls (weights, pause, sleep) reach the thread as *commands* (`mailbox.py`); the
   thread runs them between two steps. Without work it waits for one.
2. If a step fails, the requests in the engine fail; the engine drops its cache and continues.
3. `sleep` drops the model and its cache, `wake` reads the model's folder again. If the engine had newer weights, it
   samples nothing until `load_weights` has brought some.

torch is imported by `scheduler.py`, which the constructor imports: so settings are checked without torch, and two
threads never import it at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
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
from ale_engine_torch.mailbox import Mailbox
from ale_engine_torch.precision import Precision

if TYPE_CHECKING:
    from ale_engine_torch.load_decoder import Decoder
    from ale_engine_torch.scheduler import Job, Scheduler


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
        self._mailbox = Mailbox()
        self._thread: threading.Thread | None = None
        self._folder: Path | None = None
        self._stopping = self._paused = self._asleep = False
        self._updated = False  # whether it has had other weights than those of the folder
        self._outdated = False  # whether it has lost them in its sleep
        self._requests = 0
        self._jobs: dict[int, Job] = {}
        """Those that run or wait, by the identity of their requests."""
        self._counters = Counters()
        self._max_context = self.config.max_context
        self._version = 0

    @property
    def max_context(self) -> int:
        """Most tokens (prompt and response) of one request."""
        return self._max_context

    @property
    def slots(self) -> int:
        """How many requests run at the same time."""
        return self.config.max_batch

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
        self._mailbox.open()
        self._stopping = self._paused = self._asleep = self._updated = self._outdated = False
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
            self._mailbox.send(stop)
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, thread.join))

    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        """What the engine was generating fails; an engine that sleeps wakes up."""
        if folder is None:
            raise ConfigError("engine: 'torch' needs a model; give model.path or model.scratch.")

        def load() -> None:
            from ale_engine_torch.scheduler import Scheduler

            decoder = self._load_decoder(folder)
            if self._scheduler is not None:
                self._scheduler.fail_all(EngineError("The engine's model was replaced while it generated; try again."))
            self._scheduler = Scheduler(decoder, self.config.max_batch, self._counters, self.config.logit_noise)
            self._folder, self._max_context, self._version = folder, decoder.max_context, 0
            self._asleep = self._updated = self._outdated = False

        await self._mailbox.call(load)

    def _load_decoder(self, folder: Path) -> Decoder:
        import torch

        from ale_engine_torch.load_decoder import load_decoder

        c = self.config
        name = ("cuda" if torch.cuda.is_available() else "cpu") if c.device == "auto" else c.device
        return load_decoder(
            folder=folder,
            slots=c.max_batch,
            max_context=c.max_context,
            device=torch.device(name),
            dtype_name=c.dtype,
            quantization=c.quantization,
        )

    async def load_weights(self, policy: PolicyVersion) -> None:
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
            self._version, self._updated, self._outdated = policy.version, True, False

        await self._mailbox.call(replace)

    async def generate(self, request: GenerateRequest) -> Generation:
        from ale_engine_torch.scheduler import Job

        self._check_request(request)
        future: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()

        def deliver(result: Generation | BaseException) -> None:
            self._mailbox.reply(future, result)

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

        self._mailbox.send(submit)
        self._jobs[id(request)] = job
        try:
            return await future
        except asyncio.CancelledError:
            with contextlib.suppress(EngineError):
                self._mailbox.send(cancel)
            raise
        finally:
            self._jobs.pop(id(request), None)

    def sampled_so_far(self, request: GenerateRequest, after: int = 0) -> Generation:
        """Return what has been sampled, beyond `after` tokens, for a request: the object that `generate` got, which
        goes on."""
        job = self._jobs.get(id(request))
        return Generation((), (), (), "length") if job is None else job.as_generation("length", after)

    async def interrupt(self) -> None:
        """End all generations, also those that wait: each returns what it has sampled, with the finish reason
        `abort`."""

        def interrupt() -> None:
            if self._scheduler is not None:
                self._scheduler.interrupt()

        await self._mailbox.call(interrupt)

    async def check(self) -> None:
        """Raise `EngineError` if the engine's thread has ended."""
        self._mailbox.check()

    async def pause(self) -> None:
        """Finish the current step, then wait."""
        await self._mailbox.call(lambda: setattr(self, "_paused", True))

    async def resume(self) -> None:
        """Go on."""
        await self._mailbox.call(lambda: setattr(self, "_paused", False))

    async def sleep(self) -> None:
        """Give the memory of weights and cache back to the system. Requests wait, also those that run: they compute
        their contexts anew after `wake`, and go on."""

        def drop() -> None:
            from ale_engine_torch.memory import give_memory_back

            self._asleep = True
            if self._scheduler is not None:
                self._scheduler.drop_decoder()
                give_memory_back()

        await self._mailbox.call(drop)

    async def wake(self) -> None:
        """Take the memory again and read the model's folder: the version is 0. An engine that had other weights before
        it slept samples nothing until `load_weights`, so that no request is served by the model's first weights."""

        def restore() -> None:
            if self._asleep and self._scheduler is not None and self._folder is not None:
                self._scheduler.take_decoder(self._load_decoder(self._folder))
                self._version, self._outdated = 0, self._updated
            self._asleep = False

        await self._mailbox.call(restore)

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
            self._mailbox.end(end)
            if self._scheduler is not None:
                self._scheduler.fail_all(end)
                self._scheduler = None  # gives the cache's memory back
            self._mailbox.deliver()

    def _run_once(self) -> None:
        """Run the commands that have arrived (wait for one where there is nothing else to do), then a step."""
        if self._find_work() is None:
            self._mailbox.wait()
        self._mailbox.run_commands()
        scheduler = self._find_work()
        if scheduler is not None and not self._stopping:
            try:
                scheduler.step()
            except Exception as error:
                scheduler.fail_all(_engine_error("failed in a step", error))
        self._mailbox.deliver()

    def _find_work(self) -> Scheduler | None:
        """Return the scheduler if it may take a step and has something to do in it."""
        halted = self._paused or self._asleep or self._outdated
        return None if halted or self._scheduler is None or not self._scheduler.busy else self._scheduler


def _engine_error(what: str, error: BaseException) -> EngineError:
    reason = str(error) or type(error).__name__
    failure = EngineError(f"The engine 'torch' {what}: {reason}")
    failure.__cause__ = error
    return failure
