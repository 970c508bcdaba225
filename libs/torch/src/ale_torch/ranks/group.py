"""The base of groups of ranks, wherever their processes are: a call of all ranks, and how it fails.

Ranks compute together, so one that fails can leave the others waiting for it. If all fail in the same call, the first
one's error is raised and the ranks go on. If only some fail or one dies, all are ended and every later call raises
`RanksLost`, because the others hold only a part of the state.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from ale.errors import AleError, TrainerError, TrainerLost
from ale_torch.ranks.rank import Answer

OTHERS_S = 5.0
"""How long the others may take to answer after one rank has failed."""
READING = ("load", "restore")
READING_S = 120.0
"""The same in these calls, in which each rank reads files: all find the same fault, but on a slow disk not at once."""


class RanksLost(TrainerLost):
    """Ranks died, or only some of them failed: all were ended, and what they held is lost. New ones can go on from a
    checkpoint; the cause (`__cause__`) is the first one's error."""


class RankGroup(ABC):
    """Ranks that are called together. Calls come one at a time, from any thread; `kill` may come beside one."""

    _failure: TrainerError | None = None
    """The error that every later call raises."""

    def __init__(self, size: int) -> None:
        self.size = size

    def call(self, method: str, *args: Any) -> list[Any]:
        """Call a method on all ranks and return their answers, by rank.

        Raises what all of them raise, and `RanksLost` if only some fail or one has ended.
        """
        if self._failure is not None:
            raise _again(self._failure)
        self._send(cloudpickle.dumps((method, args)))
        return self._take_answers(method)

    def kill(self) -> None:
        """End all ranks by force, whatever they do. A call that another thread waits in then raises `TrainerError`."""
        self._failure = self._failure or TrainerError("The ranks were ended by force.")
        self._kill()

    def close(self) -> None:
        """End all ranks."""
        self._failure = self._failure or TrainerError("The ranks were closed.")
        self._end()

    @abstractmethod
    def _send(self, request: bytes) -> None:
        """Send a call to each rank; for one that has ended `_wait` says so."""

    @abstractmethod
    def _wait(self, ranks: Collection[int], timeout_s: float | None) -> dict[int, Answer]:
        """Wait until some of these ranks have answered and return their answers, none after `timeout_s`."""

    @abstractmethod
    def _kill(self) -> None:
        """End all ranks by force, without waiting."""

    @abstractmethod
    def _end(self) -> None:
        """End all ranks, and wait for it. It may be called again."""

    def _name(self, rank: int) -> str:
        """Return the beginning of a sentence about a rank."""
        return f"Rank {rank} of {self.size}"

    def _last_output(self) -> str:
        """Return what is known of the ranks' output, for the end of a sentence."""
        return ""

    def _take_answers(self, method: str, limit_s: float | None = None) -> list[Any]:
        """Return the answers to what was sent; a rank that gives none within `limit_s` counts as ended."""
        answers = self._collect(READING_S if method in READING else OTHERS_S, limit_s)
        ended = {rank: value for rank, (what, value) in answers.items() if what == "ended"}
        errors = {rank: value for rank, (what, value) in answers.items() if what == "error"}
        if not ended and not errors:
            return [answers[rank][1] for rank in range(self.size)]
        first = min(ended or errors)  # the others' errors are that it has ended
        cause: BaseException = (ended or errors)[first]
        if len(errors) == self.size:
            raise cause
        self._failure = self._failure or RanksLost(
            f"{self._name(first)} failed in '{method}', and not all did, so all were ended: "
            f"{cause if isinstance(cause, AleError) else f'{type(cause).__name__}: {cause}'}{self._last_output()}"
        )
        self._end()
        raise _again(self._failure) from cause

    def _collect(self, others_s: float, limit_s: float | None) -> dict[int, Answer]:
        """Wait for the answers: for all of them, or for `others_s` more once one has failed, `OTHERS_S` if it ended."""
        answers: dict[int, Answer] = {}
        until = None if limit_s is None else time.monotonic() + limit_s
        while waiting := [rank for rank in range(self.size) if rank not in answers]:
            found = self._wait(waiting, None if until is None else max(0.0, until - time.monotonic()))
            if not found:
                break
            answers |= found
            for what, _ in found.values():
                if what != "value":
                    limit = time.monotonic() + (others_s if what == "error" else OTHERS_S)
                    until = limit if until is None else min(until, limit)
        if waiting and all(what == "value" for what, _ in answers.values()):
            late = TrainerError(f"it did not answer within {limit_s:g} s.")
            answers |= {rank: ("ended", late) for rank in waiting}
        return answers


def _again(failure: TrainerError) -> TrainerError:
    """Return a copy, since an exception that is raised again keeps growing its traceback."""
    return type(failure)(str(failure))
