"""What the pool's tests share: replicas that fail when a test says so, and pools of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ale.errors import EngineError
from ale.session.tokenizer import byte_tokenizer
from ale.specs.engine import FolderTicket, GenerateRequest, Generation, PolicyVersion, Sampling, Tokenizer
from ale_engines.pool import health, member
from ale_engines.pool.continuation import NOTHING, join_parts
from ale_engines.pool.engines import Engines
from ale_engines.pool.replica import Interrupted, Replica
from ale_testing.async_tests import require_no_other_task

VOCAB = 50


@pytest.fixture(autouse=True)
def quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check often, and start again at once."""
    monkeypatch.setattr(member, "CHECK_S", 0.05)
    monkeypatch.setattr(member, "PROBE_S", 0.001)
    monkeypatch.setattr(health, "BACKOFF_S", 0.001)


def next_token(context: tuple[int, ...], version: int) -> int:
    """The token after a context: greedy sampling of a model that has one weight, its version."""
    return (31 * sum(context) + 7 * len(context) + 13 * version) % VOCAB


class FakeReplica(Replica):
    """Samples token by token; `before_token` runs before each, and may await, kill, or interrupt."""

    transports = ("folder",)
    max_context = 1000

    def __init__(self, name: str, slots: int = 2) -> None:
        self._name, self._slots, self._version = name, slots, 0
        self.alive = False
        self.sleeping = self.paused = self.forgetful = False
        self.starts = self.closes = self.interruptions = self.sampled = 0
        self.before_token: Callable[[FakeReplica, int], Awaitable[None]] | None = None
        self.before_load: Callable[[FakeReplica, PolicyVersion], Awaitable[None]] | None = None
        self.failing_starts = self.failing_sleeps = self.failing_wakes = 0
        self.served: list[GenerateRequest] = []
        self.running = self.most_running = 0
        self.others = 0

    @property
    def name(self) -> str:
        return self._name

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def requests(self) -> int:
        return self.others

    @property
    def version(self) -> int:
        return self._version

    def kill(self) -> None:
        """Die: what it samples ends, and nothing is served until it is started again."""
        self.alive = False

    async def load_model(self, folder: Path | None, tokenizer: Tokenizer) -> None:
        await self.restart()

    async def restart(self) -> None:
        self.starts += 1
        await asyncio.sleep(0)
        if self.failing_starts:
            self.failing_starts -= 1
            raise EngineError(f"{self.name} does not start.")
        self.alive, self.sleeping, self._version = True, False, 0

    async def check(self) -> None:
        if not self.alive:
            raise EngineError(f"{self.name} is dead.")

    async def interrupt(self) -> None:
        self.interruptions += 1

    async def close(self) -> None:
        self.closes += 1
        self.alive = False

    async def pause(self) -> None:
        self.paused = True

    async def resume(self) -> None:
        self.paused = False

    async def sleep(self) -> None:
        if self.failing_sleeps:
            self.failing_sleeps -= 1
            raise EngineError(f"{self.name} cannot sleep.")
        self.sleeping = True

    async def wake(self) -> None:
        if self.failing_wakes:
            self.failing_wakes -= 1
            raise EngineError(f"{self.name} does not wake up.")
        self.sleeping = False
        if self.forgetful:
            self._version = 0

    async def load_weights(self, policy: PolicyVersion) -> None:
        if self.before_load is not None:
            await self.before_load(self, policy)
        await self.check()
        if self.sleeping:
            raise EngineError(f"{self.name} is asleep.")
        self._version = policy.version

    async def generate(self, request: GenerateRequest) -> Generation:
        self.served.append(request)
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            return await self._sample(request)
        finally:
            self.running -= 1

    async def _sample(self, request: GenerateRequest) -> Generation:
        done, interruptions = NOTHING, self.interruptions
        for position in range(request.sampling.max_tokens):
            if self.before_token is not None:
                await self.before_token(self, position)
            await asyncio.sleep(0)
            if not self.alive or interruptions != self.interruptions:
                raise Interrupted(f"{self.name} broke it off.", done)
            assert not self.sleeping, "one that sleeps samples nothing"
            token = next_token(request.token_ids + done.token_ids, self._version)
            self.sampled += 1
            done = join_parts(done, Generation((token,), (-1.0 - token,), (self._version,), "length"))
            if token in request.sampling.stop_token_ids:
                return Generation(done.token_ids, done.logprobs, done.versions, "stop")
        return done

    def metrics(self) -> dict[str, float]:
        return {
            "prompt_tokens": float(sum(len(request.token_ids) for request in self.served)),
            "sampled_tokens": float(self.sampled),
            "busy_s": 1.0,
            "slot_use": 1.0 if self.sampled else 0.0,
            "server_cache_use": 0.8 if self.sampled else 0.0,
        }


def ask(
    session: str = "", max_tokens: int = 8, prompt: tuple[int, ...] = (1, 2, 3), **sampling: object
) -> GenerateRequest:
    """A request."""
    return GenerateRequest(prompt, Sampling(max_tokens=max_tokens, **sampling), session=session)  # type: ignore[arg-type]


def policy(version: int) -> PolicyVersion:
    """Weights that fake replicas take."""
    return PolicyVersion(version, FolderTicket(Path(f"/weights/{version}")))


def expected(request: GenerateRequest, version: int = 0) -> tuple[int, ...]:
    """What a fake replica samples for a request if nothing happens."""
    context = request.token_ids
    for _ in range(request.sampling.max_tokens):
        context += (next_token(context, version),)
    return context[len(request.token_ids) :]


@asynccontextmanager
async def pool_of(*replicas: Replica, notes: list[str] | None = None) -> AsyncIterator[Engines]:
    """A pool of replicas with their model; after its end no task is left."""
    before = asyncio.all_tasks()
    async with Engines(replicas, (notes if notes is not None else []).append) as pool:
        await pool.load_model(None, byte_tokenizer())
        yield pool
    await require_no_other_task(before)


async def until(true: Callable[[], bool], limit_s: float = 20.0) -> None:
    """Let the event loop run until a condition is true."""
    async with asyncio.timeout(limit_s):
        while not true():  # noqa: ASYNC110 - many conditions, none with an event of its own
            await asyncio.sleep(0.001)
