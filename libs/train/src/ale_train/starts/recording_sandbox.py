"""Records an agent's sandbox calls while an expert is replayed, and answers them from the record in later rollouts.

1. `RecordingSandbox` forwards calls and records each with its result and with the number of replies that the expert had
   given. Only `exec`, `upload` and `download` can be recorded; any other or cancelled call makes the record unusable.
2. `ReplayedSandbox` wraps a fork of the state after these calls. It answers the same calls in the same order from the
   record, and forwards everything once the policy has been asked. Any other call before means that the replay has
   diverged.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from ale.errors import SandboxError, StartDiverged
from ale.messages import ToolSpec
from ale.rollout.sandbox_wrappers.forwarding import ForwardingSandbox
from ale.specs.sandbox import AGENT, ExecResult, Sandbox
from ale_train.starts.expert_replies import ExpertReplies

T = TypeVar("T")
MOST_BYTES = 1 << 25
"""The most bytes that arguments and results of a record may hold together."""


@dataclass(frozen=True, slots=True)
class SandboxCall:
    """A call of a sandbox: its name and its arguments."""

    method: str
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.method} {next(iter(self.arguments.values()), '')!r:.100}"


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call, its result (or file error), and how many replies the expert had given by then."""

    replies: int
    asked: SandboxCall
    result: Any
    error: Exception | None = None

    def answer(self) -> Any:
        """Return the recorded result or raise the recorded error."""
        if self.error is not None:
            raise copy.copy(self.error)
        return self.result


class RecordingSandbox(ForwardingSandbox):
    """Forwards all calls to `inner`, and records those that can be recorded."""

    def __init__(self, inner: Sandbox, replies: ExpertReplies) -> None:
        super().__init__(inner)
        self._replies = replies
        self._calls: list[RecordedCall | None] = []
        self._bytes = 0
        self.unfit: str | None = None
        """Why the calls so far cannot be answered from a record; None if they can."""
        self.fault: SandboxError | None = None
        """The error with which the sandbox failed, kept even if the agent swallows it."""

    def record(self) -> tuple[RecordedCall, ...] | None:
        """Return all calls so far in the order in which they began; None if they cannot be replayed."""
        done = tuple(call for call in self._calls if call is not None)
        return done if self.unfit is None and len(done) == len(self._calls) else None

    @contextmanager
    def call(self) -> Iterator[Sandbox]:
        """Give access to the inner sandbox for calls that cannot be recorded."""
        self.unfit = "its agent does more than run commands and move files"
        with self._faults():
            yield self.inner

    async def exec(self, command: str, **options: Any) -> ExecResult:
        """Forward the call and record it."""
        asked = SandboxCall("exec", copy.deepcopy({"command": command, **options}))
        return await self._record(asked, lambda: self.inner.exec(command, **options))

    async def upload(self, files: Mapping[str, bytes], *, user: str = AGENT, mode: int = 0o644) -> None:
        """Forward the call and record it."""
        asked = SandboxCall("upload", {"files": dict(files), "user": user, "mode": mode})
        self._count_bytes(*files.values())
        await self._record(asked, lambda: self.inner.upload(files, user=user, mode=mode))

    async def download(self, path: str, *, max_bytes: int = 1 << 28) -> bytes:
        """Forward the call and record it."""
        asked = SandboxCall("download", {"path": path, "max_bytes": max_bytes})
        return await self._record(asked, lambda: self.inner.download(path, max_bytes=max_bytes))

    async def _record(self, asked: SandboxCall, call: Callable[[], Awaitable[T]]) -> T:
        place, replies = len(self._calls), self._replies.done
        self._calls.append(None)
        result, error = None, None
        try:
            with self._faults():
                result = await call()
        except (OSError, ValueError) as answer:
            error = answer
            raise
        except BaseException:
            self.unfit = self.unfit or "a call of its agent was cancelled"
            raise
        finally:
            self._calls[place] = RecordedCall(replies, asked, result, error)
        if isinstance(result, ExecResult):
            self._count_bytes(result.stdout, result.stderr)
        elif isinstance(result, bytes):
            self._count_bytes(result)
        return result

    def _count_bytes(self, *outputs: bytes) -> None:
        self._bytes += sum(map(len, outputs))
        if self._bytes > MOST_BYTES:
            self.unfit = f"its calls hold more than {MOST_BYTES >> 20} MiB"

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except SandboxError as fault:
            self.fault = self.fault or fault
            raise


class ReplayedSandbox(ForwardingSandbox):
    """A fork that answers the calls before the policy's first turn from the record. `tools` are the tools of that
    turn's model call."""

    def __init__(
        self,
        inner: Sandbox,
        record: Sequence[RecordedCall],
        tools: frozenset[str],
        replies: ExpertReplies,
        diverged: Callable[[str], None],
    ) -> None:
        super().__init__(inner)
        self._left = deque(record)
        self._tools = tools
        self._replies = replies
        self._diverged = diverged
        """It is called with the reason if the record does not fit."""
        self._fault: StartDiverged | None = None
        self._over = False

    def policy_asked(self, tools: Sequence[ToolSpec]) -> None:
        """Note that the policy is asked. Raises `StartDiverged` if recorded calls are still missing, so that the state
        is not the expert's."""
        self.check()
        if not self._over and not self._replies.left and frozenset(tool.name for tool in tools) == self._tools:
            if self._left:
                raise self._diverge(f"did not repeat its call {self._left[0].asked}")
            self._over = True

    def check(self) -> None:
        """Raise the `StartDiverged` of an earlier call again, in case the agent swallowed it."""
        if self._fault is not None:
            raise self._fault

    @contextmanager
    def call(self) -> Iterator[Sandbox]:
        """Return the fork; only the policy's turns may use it."""
        if not self._over:
            raise self._diverge("makes a call that cannot be recorded")
        yield self.inner

    async def exec(self, command: str, **options: Any) -> ExecResult:
        """Answer from the record, or forward the call once the policy has been asked."""
        if self._over:
            return await self.inner.exec(command, **options)
        result: ExecResult = self._answer(SandboxCall("exec", {"command": command, **options}))
        return result

    async def upload(self, files: Mapping[str, bytes], *, user: str = AGENT, mode: int = 0o644) -> None:
        """Answer from the record, or forward the call once the policy has been asked."""
        if self._over:
            return await self.inner.upload(files, user=user, mode=mode)
        self._answer(SandboxCall("upload", {"files": dict(files), "user": user, "mode": mode}))
        return None

    async def download(self, path: str, *, max_bytes: int = 1 << 28) -> bytes:
        """Answer from the record, or forward the call once the policy has been asked."""
        if self._over:
            return await self.inner.download(path, max_bytes=max_bytes)
        data: bytes = self._answer(SandboxCall("download", {"path": path, "max_bytes": max_bytes}))
        return data

    def _answer(self, asked: SandboxCall) -> Any:
        self.check()
        expected = self._left[0] if self._left else None
        if expected is None or (expected.replies, expected.asked) != (self._replies.done, asked):
            then = "nothing more" if expected is None else f"{expected.asked} after {expected.replies} chunks"
            raise self._diverge(f"called the sandbox with {asked}, but before with {then}")
        self._left.popleft()
        return expected.answer()

    def _diverge(self, what: str) -> StartDiverged:
        done = self._replies.done
        self._fault = self._fault or StartDiverged(f"After chunk {done} of the expert its agent {what}.")
        self._diverged(str(self._fault))
        return self._fault
