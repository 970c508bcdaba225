"""What an agent does in its sandbox while an expert is replayed: recorded once, answered from the record ever after.

1. `RecordingSandbox` passes calls on and keeps each with its result, and with the number of replies that the expert had given. Only
   `exec`, `upload` and `download` can be kept; any other call, or one that was cancelled, makes the record unfit.
2. `ReplayedSandbox` stands around a fork of the state behind these calls. It answers the same calls in the same order from the
   record, and passes everything on once the policy has been asked to go on. Any other call means that the replay has diverged.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from ale.endpoint.prefill import Prefill
from ale.errors import DivergedReplay, SandboxError
from ale.messages import Message, ToolSpec
from ale.rollout.passing import PassingSandbox
from ale.specs.sandbox import AGENT, ExecResult, Sandbox
from ale.specs.scaffold import Responder

T = TypeVar("T")
MOST_BYTES = 1 << 25
"""What the calls of a record may say and be told, all together."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A call of a sandbox: its name and everything that it was given."""

    method: str
    given: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.method} {next(iter(self.given.values()), '')!r:.100}"


@dataclass(frozen=True, slots=True)
class Call:
    """A call, what came of it (a result, or an error of the file's), and how many replies the expert had given by then."""

    replies: int
    asked: Asked
    result: Any
    error: Exception | None = None

    def answer(self) -> Any:
        """What came of it, once more."""
        if self.error is not None:
            raise copy.copy(self.error)
        return self.result


class RecordingSandbox(PassingSandbox):
    """Passes everything on to `inner`, and keeps what can be kept."""

    def __init__(self, inner: Sandbox, prefill: Prefill) -> None:
        super().__init__(inner)
        self._prefill = prefill
        self._calls: list[Call | None] = []
        self._bytes = 0
        self.unfit: str | None = None
        """Why what was done so far cannot be answered from a record."""
        self.fault: SandboxError | None = None
        """What the sandbox failed with, also where the agent swallows it."""

    def record(self) -> tuple[Call, ...] | None:
        """All calls so far in the order in which they began; None where they are no record."""
        done = tuple(call for call in self._calls if call is not None)
        return done if self.unfit is None and len(done) == len(self._calls) else None

    @contextmanager
    def call(self) -> Iterator[Sandbox]:
        """For every call that is not kept."""
        self.unfit = "its agent does more than run commands and move files"
        with self._faults():
            yield self.inner

    async def exec(self, command: str, **options: Any) -> ExecResult:
        """Pass on and keep."""
        asked = Asked("exec", copy.deepcopy({"command": command, **options}))
        return await self._kept(asked, lambda: self.inner.exec(command, **options))

    async def upload(self, files: Mapping[str, bytes], *, user: str = AGENT, mode: int = 0o644) -> None:
        """Pass on and keep."""
        asked = Asked("upload", {"files": dict(files), "user": user, "mode": mode})
        self._weigh(*files.values())
        await self._kept(asked, lambda: self.inner.upload(files, user=user, mode=mode))

    async def download(self, path: str, *, max_bytes: int = 1 << 28) -> bytes:
        """Pass on and keep."""
        asked = Asked("download", {"path": path, "max_bytes": max_bytes})
        return await self._kept(asked, lambda: self.inner.download(path, max_bytes=max_bytes))

    async def _kept(self, asked: Asked, call: Callable[[], Awaitable[T]]) -> T:
        place, replies = len(self._calls), self._prefill.done
        self._calls.append(None)
        result, error = None, None
        try:
            with self._faults():
                result = await call()
        except (OSError, ValueError) as answer:
            error = answer
            raise
        except BaseException:
            self.unfit = self.unfit or "a call of its agent did not come to its end"
            raise
        finally:
            self._calls[place] = Call(replies, asked, result, error)
        if isinstance(result, ExecResult):
            self._weigh(result.stdout, result.stderr)
        elif isinstance(result, bytes):
            self._weigh(result)
        return result

    def _weigh(self, *said: bytes) -> None:
        self._bytes += sum(map(len, said))
        if self._bytes > MOST_BYTES:
            self.unfit = f"its calls hold more than {MOST_BYTES >> 20} MiB"

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except SandboxError as fault:
            self.fault = self.fault or fault
            raise


class ReplayedSandbox(PassingSandbox):
    """A fork that answers the calls before the policy's from the record. `tools` are those of the call that is the policy's."""

    def __init__(
        self, inner: Sandbox, record: Sequence[Call], tools: frozenset[str], prefill: Prefill, diverged: Callable[[str], None]
    ) -> None:  # fmt: skip
        super().__init__(inner)
        self._left = deque(record)
        self._tools = tools
        self._prefill = prefill
        self._diverged = diverged
        """Told why the record does not fit."""
        self._fault: DivergedReplay | None = None
        self._over = False

    def policy_asked(self, tools: Sequence[ToolSpec]) -> None:
        """The policy is asked something. Raises `DivergedReplay` where it is to go on from another state than the expert's."""
        self.check()
        if not self._over and not self._prefill.left and frozenset(tool.name for tool in tools) == self._tools:
            if self._left:
                raise self._other(f"does not do what it did, {self._left[0].asked}")
            self._over = True

    def check(self) -> None:
        """Raises the `DivergedReplay` that a call ended with, also where the agent has swallowed it."""
        if self._fault is not None:
            raise self._fault

    @contextmanager
    def call(self) -> Iterator[Sandbox]:
        """The fork, which is there for the policy alone."""
        if not self._over:
            raise self._other("does something that is in no record")
        yield self.inner

    async def exec(self, command: str, **options: Any) -> ExecResult:
        """Answer from the record, or pass on."""
        if self._over:
            return await self.inner.exec(command, **options)
        result: ExecResult = self._answer(Asked("exec", {"command": command, **options}))
        return result

    async def upload(self, files: Mapping[str, bytes], *, user: str = AGENT, mode: int = 0o644) -> None:
        """Answer from the record, or pass on."""
        if self._over:
            return await self.inner.upload(files, user=user, mode=mode)
        self._answer(Asked("upload", {"files": dict(files), "user": user, "mode": mode}))
        return None

    async def download(self, path: str, *, max_bytes: int = 1 << 28) -> bytes:
        """Answer from the record, or pass on."""
        if self._over:
            return await self.inner.download(path, max_bytes=max_bytes)
        data: bytes = self._answer(Asked("download", {"path": path, "max_bytes": max_bytes}))
        return data

    def _answer(self, asked: Asked) -> Any:
        self.check()
        expected = self._left[0] if self._left else None
        if expected is None or (expected.replies, expected.asked) != (self._prefill.done, asked):
            then = "nothing more" if expected is None else f"{expected.asked} after {expected.replies} chunks"
            raise self._other(f"asks the sandbox for {asked}, where it had asked for {then}")
        self._left.popleft()
        return expected.answer()

    def _other(self, what: str) -> DivergedReplay:
        done = self._prefill.done
        self._fault = self._fault or DivergedReplay(f"After chunk {done} of the expert its agent {what}.")
        self._diverged(str(self._fault))
        return self._fault


class Takeover:
    """Answers what no expert does, with `responder` where there is one, and tells a replayed sandbox of it before."""

    def __init__(self, prefill: Prefill | None, responder: Responder | None) -> None:
        self._prefill, self._responder = prefill, responder
        self._replayed: ReplayedSandbox | None = None

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message | None:
        if self._replayed is not None:
            self._replayed.policy_asked(tools)
        return None if self._responder is None else await self._responder(messages, tools)

    def stand_for(
        self, fork: Sandbox, record: Sequence[Call], tools: frozenset[str], diverged: Callable[[str], None]
    ) -> Sandbox:
        """The sandbox of the agent, which seems to be where the expert's calls are really run."""
        assert self._prefill is not None
        self._replayed = ReplayedSandbox(fork, record, tools, self._prefill, diverged)
        return self._replayed

    def check(self) -> None:
        """Raises `DivergedReplay` where the agent did not do what the record holds, and has not said so."""
        if self._replayed is not None:
            self._replayed.check()
