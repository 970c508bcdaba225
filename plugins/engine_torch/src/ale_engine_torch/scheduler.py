"""Continuous batching: decides which request gets which slot, and what the next step computes.

- When a call ends, its slot keeps the session's tokens and their cache; the session's next call computes only what is
  new. A new session takes the slot that has been idle longest. While an agent waits for a tool, its slot is idle and
  not part of the batch.
- Where another slot holds a prefix of a prompt (the system prompt, the task of the same group), that part is copied.
  Requests that arrive together are admitted in waves, so that the later ones can copy from the first.
- Slots that decode are kept in front (rows `0..active`), by swapping; long contexts move to the end of these.
- A step admits and prefills waiting requests, up to a budget, then decodes one token for every row.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from ale.errors import EngineError
from ale.specs.engine import GenerateRequest, Generation
from ale.trajectory import FinishReason
from ale_engine_torch.llama_decoder import TAIL_ROWS
from ale_engine_torch.load_decoder import Decoder
from ale_engine_torch.sampling import is_plain, normal_noise, sample, uniform_stream
from ale_engine_torch.slot_table import SHARE_MIN, IntArray, SlotTable

PREFILL_TOKENS = 2048
"""The most tokens that a step prefills before it decodes (a single longer prompt is an exception)."""

MISPLACED_BY = 64
"""Positions by which a row must be longer than one of the tail to change places with it."""


@dataclass(eq=False)
class Job:
    """One request in the engine. `deliver` gets the generation or the error, in the engine's thread."""

    request: GenerateRequest
    deliver: Callable[[Generation | BaseException], None]
    seed: int
    limit: int = 0
    plain: bool = True
    stops: frozenset[int] = frozenset()
    prompt: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    uniforms: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def as_generation(self, reason: FinishReason, after: int = 0) -> Generation:
        """Return what has been sampled, beyond `after` tokens; any thread may ask, also while more is sampled."""
        new = slice(after, len(self.versions))  # a step adds to it last
        return Generation(tuple(self.token_ids[new]), tuple(self.logprobs[new]), tuple(self.versions[new]), reason)


@dataclass
class Counters:
    """Counters since the start; see `InferenceEngine.metrics`."""

    requests: float = 0
    prompt_tokens: float = 0
    cached_prompt_tokens: float = 0
    sampled_tokens: float = 0
    prefill_s: float = 0
    decode_s: float = 0
    steps: float = 0
    active_sum: float = 0


@dataclass(frozen=True)
class _AdmittedRow:
    """A row whose slot holds the prompt up to `start`; `tokens` are still to be computed."""

    row: int
    tokens: IntArray
    start: int


class Scheduler:
    """Owns the decoder; used by one thread."""

    def __init__(self, decoder: Decoder, slots: int, counters: Counters, logit_noise: float = 0.0) -> None:
        self._decoder: Decoder | None = decoder
        self.counters = counters
        self._logit_noise = logit_noise
        self.version = 0
        self._max_context = decoder.max_context
        self._table = SlotTable(slots, decoder.max_context)
        self._jobs: list[Job] = []  # of the rows 0..active
        self._waiting: deque[Job] = deque()

    @property
    def decoder(self) -> Decoder:
        """The model. Raises `EngineError` if it was dropped."""
        if self._decoder is None:
            raise EngineError("The engine 'torch' is asleep; call wake first.")
        return self._decoder

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self._jobs) or bool(self._waiting)

    def submit(self, job: Job) -> None:
        """Queue a job whose prompt fits the context."""
        request = job.request
        job.limit = min(request.sampling.max_tokens, self._max_context - len(request.token_ids))
        job.plain = is_plain(request.sampling)
        job.stops = frozenset(request.sampling.stop_token_ids)
        job.prompt = np.array(request.token_ids, dtype=np.int64)
        job.uniforms = uniform_stream(job.seed, job.limit)
        self._waiting.append(job)

    def cancel(self, job: Job) -> None:
        """Remove a cancelled job from the queue or from its row."""
        if job in self._waiting:
            self._waiting.remove(job)
        elif job in self._jobs:
            self._release(self._jobs.index(job))

    def interrupt(self) -> None:
        """End all queued or running jobs with what they have sampled; the slots keep their caches."""
        while self._waiting:
            job = self._waiting.popleft()
            job.deliver(job.as_generation("abort"))
        while self._jobs:
            job = self._jobs[-1]
            self._release(len(self._jobs) - 1)
            job.deliver(job.as_generation("abort"))

    def drop_decoder(self) -> None:
        """Free the model and its cache. What runs goes back to the queue, and goes on from what it has sampled."""
        for job in reversed(self._jobs):
            job.prompt = np.array([*job.request.token_ids, *job.token_ids], dtype=np.int64)
            self._waiting.appendleft(job)
        self._jobs.clear()
        self._table.clear()
        self._decoder = None

    def take_decoder(self, decoder: Decoder) -> None:
        """Go on with a model like the one that was dropped, at version 0."""
        self._decoder, self.version = decoder, 0

    def weights_changed(self, version: int) -> None:
        """Invalidate the cache of idle slots, because the decoder has new weights. Running jobs keep their cache."""
        self.version = version
        self._table.weights += 1

    def fail_all(self, error: EngineError) -> None:
        """Deliver an error to all queued or running jobs, and clear the slots."""
        for job in [*self._waiting, *self._jobs]:
            own = EngineError(*error.args)  # one each, because an exception raised in many tasks mixes their tracebacks
            own.__cause__ = error.__cause__
            job.deliver(own)
        self._waiting.clear()
        self._jobs.clear()
        self._table.clear()

    @torch.inference_mode()
    def step(self) -> None:
        """Admit, prefill, decode once."""
        if self._waiting:
            self._admit()
        if self._jobs:
            self._decode()

    # -- admission ---------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        began = time.perf_counter()
        budget = PREFILL_TOKENS
        while budget > 0 and self._waiting and self._table.active < self._table.count:
            wave = self._form_wave(budget)
            done: list[int] = []
            for part in _length_classes(wave):
                logits = self.decoder.prefill(
                    [a.row for a in part], [a.tokens.tolist() for a in part], [a.start for a in part]
                )
                done += self._sample_tokens([a.row for a in part], logits)
            budget -= sum(len(a.tokens) for a in wave)
            self._finish(done)
        self.counters.prefill_s += time.perf_counter() - began

    def _form_wave(self, budget: int) -> list[_AdmittedRow]:
        """Give slots to waiting jobs; a job that could copy a prefix from a member of this wave waits for the next."""
        table, wave, later = self._table, list[_AdmittedRow](), list[Job]()
        ready = np.ones(table.count, dtype=np.bool_)  # slots that this wave is about to compute cannot be copied yet
        try:
            while self._waiting and table.active < table.count and budget > 0:
                later.append(self._waiting.popleft())
                job = later[-1]
                common = table.shared_prefixes(job.prompt) if self.decoder.prefix_reuse else np.zeros_like(table.length)
                usable = np.where(ready, common, 0)
                if int(common.max()) >= int(usable.max()) + SHARE_MIN:
                    continue
                wave.append(self._place(job, usable))
                later.pop()
                ready[wave[-1].row] = False
                budget -= len(wave[-1].tokens)
        finally:
            self._waiting.extendleft(reversed(later))  # also after a failure, so that every job gets the error
        return wave

    def _place(self, job: Job, usable: IntArray) -> _AdmittedRow:
        """Move an idle slot to the end of the active rows, and copy to it the prefix that another slot shares."""
        table, session = self._table, job.request.session
        idle, row = table.idle_row(session), table.active
        start, source = int(usable[idle]), int(usable.argmax())
        self._swap(idle, row)
        if int(usable[source]) >= start + SHARE_MIN:
            start = int(usable[source])
            source = {idle: row, row: idle}.get(source, source)
            self.decoder.copy_prefix(source, row, start)
        table.active += 1
        table.occupy(row, session, job.prompt)
        self._jobs.append(job)
        self.counters.requests += not job.token_ids  # one that goes on after a sleep was counted before
        self.counters.prompt_tokens += len(job.prompt)
        self.counters.cached_prompt_tokens += start
        return _AdmittedRow(row, job.prompt[start:], start)

    # -- decoding ----------------------------------------------------------------------------------------------

    def _decode(self) -> None:
        began = time.perf_counter()
        table, n = self._table, len(self._jobs)
        misplaced = table.find_misplaced_rows(TAIL_ROWS, MISPLACED_BY)
        if misplaced is not None:
            self._swap(*misplaced)
        last = np.array([job.token_ids[-1] for job in self._jobs], dtype=np.int64)
        logits = self.decoder.decode(last, table.append(n, last))
        self._finish(self._sample_tokens(range(n), logits))
        self.counters.steps += 1
        self.counters.active_sum += n
        self.counters.decode_s += time.perf_counter() - began

    def _sample_tokens(self, rows: range | list[int], logits: torch.Tensor) -> list[int]:
        """Sample one token for each row; returns the rows that are done."""
        jobs = [self._jobs[row] for row in rows]
        uniforms = [job.uniforms[len(job.token_ids)] for job in jobs]
        settings = None if all(job.plain for job in jobs) else [job.request.sampling for job in jobs]
        if self._logit_noise:
            noise = normal_noise([(job.seed, len(job.token_ids)) for job in jobs], logits.shape[-1])
            logits = logits + noise.to(logits.device) * self._logit_noise
        tokens, logprobs = sample(logits, uniforms, settings)
        done = []
        for row, job, token, logprob in zip(rows, jobs, tokens.tolist(), logprobs.tolist(), strict=True):
            if logprob != logprob:
                raise EngineError("the model's logits are NaN: its weights are broken.")
            job.token_ids.append(token)
            job.logprobs.append(logprob)
            job.versions.append(self.version)
            if token in job.stops or len(job.token_ids) == job.limit:
                done.append(row)
        self.counters.sampled_tokens += len(jobs)
        return done

    def _finish(self, rows: list[int]) -> None:
        """Deliver finished jobs, from the last row on: a row that is released gets the last row's job."""
        for row in sorted(rows, reverse=True):
            job = self._jobs[row]
            reason: FinishReason = "stop" if job.token_ids[-1] in job.stops else "length"
            self._release(row)
            job.deliver(job.as_generation(reason))

    def _release(self, row: int) -> None:
        """Stop decoding a row: its slot keeps its cache, and the last active row takes its place."""
        table = self._table
        table.mark_used(row)
        self._swap(row, table.active - 1)
        self._jobs.pop()
        table.active -= 1

    def _swap(self, a: int, b: int) -> None:
        if a == b:
            return
        self.decoder.swap(a, b, self._table.positions_to_move(a, b))
        self._table.swap(a, b)
        if max(a, b) < len(self._jobs):
            self._jobs[a], self._jobs[b] = self._jobs[b], self._jobs[a]


def _length_classes(wave: list[_AdmittedRow]) -> list[list[_AdmittedRow]]:
    """Split a wave into batches of similar lengths, so that little is padding."""
    parts: list[list[_AdmittedRow]] = []
    for item in sorted(wave, key=lambda a: len(a.tokens)):
        part = parts[-1] if parts else None
        if (
            part is not None
            and len(item.tokens) <= 1.5 * len(part[0].tokens) + 16
            and (len(part) + 1) * len(item.tokens) <= PREFILL_TOKENS
        ):
            part.append(item)
        else:
            parts.append([item])
    return parts
