"""Continuous batching: which request sits in which slot, and what the next step computes.

- A slot belongs to a *session* from its first call on. When a call ends, the slot keeps the session's tokens and
  their cache; the session's next call computes only what is new. A free slot is taken from the session that has been
  idle longest. A waiting agent therefore holds a slot but no place in the batch.
- Slots that decode are kept in front (rows `0..active`), by swapping.
- A step first prefills what has arrived (as one padded batch a length class), then decodes one token for every row.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from ale.specs.engine import GenerateRequest, Generation
from ale.trajectory import FinishReason
from ale_engine_torch.load import Decoder
from ale_engine_torch.sampling import sample, uniform_stream

PREFILL_BATCH_TOKENS = 4096


@dataclass(eq=False)
class Job:
    """One request on its way. `deliver` gets the generation or the error, in the engine's thread."""

    request: GenerateRequest
    deliver: Callable[[Generation | BaseException], None]
    seed: int
    limit: int = 0
    uniforms: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    cancelled: bool = False


@dataclass(eq=False)
class _Slot:
    """`tokens` are those whose keys and values the cache holds, all computed with the weights numbered `weights`."""

    session: str = ""
    tokens: list[int] = field(default_factory=list)
    weights: int = -1
    job: Job | None = None
    used: float = 0.0


@dataclass
class Counters:
    """Since the start; see `InferenceEngine.metrics`."""

    requests: float = 0
    prompt_tokens: float = 0
    cached_prompt_tokens: float = 0
    sampled_tokens: float = 0
    prefill_s: float = 0
    decode_s: float = 0
    steps: float = 0
    active_sum: float = 0


class Scheduler:
    """Owns the decoder; used by one thread."""

    def __init__(self, decoder: Decoder, slots: int, device: torch.device) -> None:
        self.decoder = decoder
        self.counters = Counters()
        self.version = 0
        self._device = device
        self._slots = [_Slot() for _ in range(slots)]
        self._active = 0
        self._waiting: deque[Job] = deque()
        self._weights = 0

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return self._active > 0 or bool(self._waiting)

    def submit(self, job: Job) -> None:
        """Queue a job whose prompt fits the context."""
        request = job.request
        job.limit = min(request.sampling.max_tokens, self.decoder.max_context - len(request.token_ids))
        job.uniforms = uniform_stream(job.seed, job.limit)
        self._waiting.append(job)

    def weights_changed(self, version: int) -> None:
        """The decoder has other weights: what idle slots hold is void. Running jobs go on with what they have."""
        self.version = version
        self._weights += 1

    def fail_all(self, error: BaseException) -> None:
        """Deliver an error to everything queued or running."""
        for job in [*self._waiting, *(s.job for s in self._slots if s.job is not None)]:
            job.deliver(error)
        self._waiting.clear()
        self._active = 0
        for slot in self._slots:
            slot.job, slot.tokens = None, []

    @torch.inference_mode()
    def step(self) -> None:
        """Admit, prefill, decode once."""
        self._drop_cancelled()
        self._admit()
        if self._active:
            self._decode()

    def _drop_cancelled(self) -> None:
        if any(job.cancelled for job in self._waiting):
            self._waiting = deque(job for job in self._waiting if not job.cancelled)
        for row in reversed(range(self._active)):
            job = self._slots[row].job
            if job is not None and job.cancelled:
                self._release(row)

    # -- admission ---------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        admitted: list[tuple[int, list[int], int]] = []
        while self._waiting and self._active < len(self._slots):
            job = self._waiting.popleft()
            row = self._place(job)
            slot = self._slots[row]
            prompt = job.request.token_ids
            start = self._reusable(slot, prompt) or self._copy_shared(row, prompt, {r for r, _, _ in admitted})
            slot.session, slot.job, slot.weights = job.request.session, job, self._weights
            slot.tokens = list(prompt)
            admitted.append((row, list(prompt[start:]), start))
            self.counters.requests += 1
            self.counters.prompt_tokens += len(prompt)
            self.counters.cached_prompt_tokens += start
        if admitted:
            began = time.perf_counter()
            for part in _length_classes(admitted):
                self._prefill(part)
            self.counters.prefill_s += time.perf_counter() - began
            for row in sorted((row for row, _, _ in admitted), reverse=True):
                self._finish_if_done(row)

    def _place(self, job: Job) -> int:
        """Move the session's slot, or the longest idle one, to the end of the active rows; returns its row."""
        idle = range(self._active, len(self._slots))
        session = job.request.session
        own = [r for r in idle if session and self._slots[r].session == session]
        row = own[0] if own else min(idle, key=lambda r: self._slots[r].used)
        self._swap(row, self._active)
        self._active += 1
        return self._active - 1

    def _reusable(self, slot: _Slot, prompt: tuple[int, ...]) -> int:
        """How many leading tokens of the prompt the slot's cache holds, computed with the current weights."""
        if slot.weights != self._weights:
            return 0
        return _common_prefix(slot.tokens, prompt)

    def _copy_shared(self, row: int, prompt: tuple[int, ...], fresh: set[int]) -> int:
        """Copy a prefix (the system prompt, say) that another slot has computed already."""
        best, length = -1, 15
        for other, slot in enumerate(self._slots):
            # What is admitted in this very step is not computed yet.
            if other == row or other in fresh or slot.weights != self._weights:
                continue
            common = _common_prefix(slot.tokens, prompt)
            if common > length:
                best, length = other, common
                break
        if best < 0:
            return 0
        self.decoder.copy_prefix(best, row, length)
        return length

    def _prefill(self, part: list[tuple[int, list[int], int]]) -> None:
        rows = [row for row, _, _ in part]
        logits = self.decoder.prefill(rows, [t for _, t, _ in part], [start for _, _, start in part])
        self._take(rows, logits)

    # -- decoding ----------------------------------------------------------------------------------------------

    def _decode(self) -> None:
        began = time.perf_counter()
        n = self._active
        self.counters.steps += 1
        self.counters.active_sum += n
        last, positions = [], []
        for row in range(n):
            slot = self._slots[row]
            assert slot.job is not None
            last.append(slot.job.token_ids[-1])
            positions.append(len(slot.tokens))
            slot.tokens.append(last[-1])
        logits = self.decoder.decode(
            torch.tensor(last, device=self._device), torch.tensor(positions, device=self._device)
        )
        self._take(list(range(n)), logits)
        for row in reversed(range(n)):
            self._finish_if_done(row)
        self.counters.decode_s += time.perf_counter() - began

    def _take(self, rows: list[int], logits: torch.Tensor) -> None:
        """Sample one token for each row."""
        jobs = [job for row in rows if (job := self._slots[row].job) is not None]
        uniforms = [job.uniforms[len(job.token_ids)] for job in jobs]
        tokens, logprobs = sample(logits, uniforms, [job.request.sampling for job in jobs])
        for job, token, logprob in zip(jobs, tokens.tolist(), logprobs.tolist(), strict=True):
            job.token_ids.append(token)
            job.logprobs.append(logprob)
            job.versions.append(self.version)
        self.counters.sampled_tokens += len(jobs)

    def _finish_if_done(self, row: int) -> None:
        job = self._slots[row].job
        assert job is not None
        stopped = job.token_ids[-1] in job.request.sampling.stop_token_ids
        if not stopped and len(job.token_ids) < job.limit:
            return
        reason: FinishReason = "stop" if stopped else "length"
        generation = Generation(tuple(job.token_ids), tuple(job.logprobs), tuple(job.versions), reason)
        self._release(row)
        job.deliver(generation)

    def _release(self, row: int) -> None:
        """The row stops decoding; its slot keeps what it has computed."""
        slot = self._slots[row]
        slot.job, slot.used = None, time.monotonic()
        self._active -= 1
        self._swap(row, self._active)

    def _swap(self, a: int, b: int) -> None:
        if a != b:
            self.decoder.swap(a, b)
            self._slots[a], self._slots[b] = self._slots[b], self._slots[a]


def _common_prefix(held: list[int], prompt: tuple[int, ...]) -> int:
    """Length of the common prefix, leaving at least one token of the prompt to compute."""
    limit = min(len(held), len(prompt) - 1)
    if tuple(held[:limit]) == prompt[:limit]:
        return limit
    n = 0
    while n < limit and held[n] == prompt[n]:
        n += 1
    return n


def _length_classes(admitted: list[tuple[int, list[int], int]]) -> list[list[tuple[int, list[int], int]]]:
    """Cut into batches of like lengths, so that little of a padded batch is padding."""
    parts: list[list[tuple[int, list[int], int]]] = []
    for item in sorted(admitted, key=lambda a: len(a[1])):
        part = parts[-1] if parts else None
        fits = (
            part is not None
            and len(item[1]) <= 1.5 * len(part[0][1]) + 16
            and (len(part) + 1) * len(item[1]) <= PREFILL_BATCH_TOKENS
        )
        if part is not None and fits:
            part.append(item)
        else:
            parts.append([item])
    return parts
