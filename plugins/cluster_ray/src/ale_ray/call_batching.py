"""Batches the calls of an actor that is called often: calls go out, and messages come back, in one *exchange*.

1. An exchange is one Ray call. It carries the calls made so far and returns once the actor has messages. An exchange
   costs the run half a millisecond, so calls and results of many episodes share one. Most of that cost is waking up, so
   the exchanges of several actors happen at the same moments (`timer_coalescing.py`).
2. While there is nothing to send, one exchange waits at the actor. A new call does not wait for it: it goes with a new
   exchange, which ends the one before.
3. Exchanges are numbered, because actors may begin them in any order. Only the newest one takes messages, and the run
   reads their results by number, so messages keep their order. Calls need no order: a caller waits for its result
   before it makes the call that depends on it.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from ale.registry.validation import one_line_error
from ale_ray.actor_calls import ActorLost, Failed, answered, when_answered
from ale_ray.actor_lifecycle import deliver
from ale_ray.actor_messages import GATHER_S, Outbox
from ale_ray.timer_coalescing import next_tick

SEND_S = 2 * GATHER_S
"""The least time between two exchanges for the sake of calls: the first call after a rest is sent at once. A busy actor
has messages before that, and calls go with the exchange that follows them."""
REPLY_S = 0.04
"""How long, about, the next exchange waits for the calls to which the messages of the last one have led."""


@dataclass(frozen=True, slots=True)
class MethodCall:
    """A call of a method. Its arguments are pickled by themselves: those that cannot be read are its own error."""

    number: int
    method: str
    arguments: bytes


@dataclass(frozen=True, slots=True)
class MethodResult:
    """What a call returned, or `Failed`."""

    number: int
    value: Any


class CallBatcher:
    """The run's side. Calls are answered while `listen` runs."""

    def __init__(self, who: str, actor: Any) -> None:
        self._who, self._actor = who, actor
        self._numbers = count()
        self._calls: list[MethodCall] = []
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._receive: Callable[[Any], None] | None = None
        self._over = asyncio.Event()
        """Set once the actor has closed, or is lost."""
        self._begun = self.heard = 0
        """How many exchanges have begun, and of how many the messages have been read."""
        self._results: dict[int, list[Any]] = {}
        """The messages of exchanges that could not be read yet, by number."""
        self._timer: asyncio.TimerHandle | None = None
        """Of the next exchange."""
        self._next = 0.0
        """When calls may have an exchange of their own, in the loop's time."""
        self._failure: ActorLost | None = None

    def ask(self, method: str, *arguments: Any) -> asyncio.Future[Any]:
        """Call a method of the actor. The future has what it returns or raises, or `ActorLost`; the answer to one that
        is cancelled is dropped."""
        call = MethodCall(next(self._numbers), method, _pickle(arguments))
        future = self._waiting[call.number] = asyncio.get_running_loop().create_future()
        if self._failure is not None:
            self.fail(self._failure)
        else:
            self._calls.append(call)
            self._exchange_at(self._next)
        return future

    async def listen(self, receive: Callable[[Any], None]) -> None:
        """Take answers, and give other messages to `receive`, until the actor has closed (see `deliver`). Raises
        `ActorLost`. When this ends, however it does, so do all calls that wait, and later ones."""
        self._receive = receive
        try:
            self._read_results()
            await self._over.wait()
            if self._failure is not None:
                raise ActorLost(str(self._failure))
        finally:
            self.fail(ActorLost(f"{self._who} was closed."))

    def fail(self, error: ActorLost) -> None:
        """Have all calls that wait, and later ones, raise `ActorLost`."""
        self._failure = self._failure or error
        self._over.set()
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(ActorLost(str(self._failure)))

    def _take_answer(self, answer: MethodResult) -> None:
        future = self._waiting.pop(answer.number, None)
        if future is None or future.done():
            return
        if isinstance(answer.value, Failed):
            future.set_exception(_read_error(answer.value))
        else:
            future.set_result(answer.value)

    def _exchange_at(self, time: float) -> None:
        """Begin the next exchange at a time of the loop, unless one is to begin before."""
        if self._timer is not None and self._timer.when() > time:
            self._timer.cancel()
            self._timer = None
        if self._timer is None and not self._over.is_set():
            self._timer = asyncio.get_running_loop().call_at(time, self._exchange)

    def _exchange(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer, self._next = None, loop.time() + SEND_S
        calls, self._calls = self._calls, []
        number, self._begun = self._begun, self._begun + 1
        try:
            # Bytes are what Ray sends with the least work.
            reference = self._actor.exchange.remote(pickle.dumps((number, calls)))
            when_answered(self._who, reference, partial(self._end_exchange, number))
        except Exception as error:  # whatever it is, no answer will come
            self._lose(error)

    def _end_exchange(self, number: int, answer: Any) -> None:
        if isinstance(answer, Exception):
            if not self._over.is_set():
                self._lose(answer)
        else:
            self._results[number] = answer
            self._read_results()

    def _read_results(self) -> None:
        """Read what exchanges have brought, in their order; if none is left, the next one begins soon."""
        if self._receive is None:
            return
        while self.heard in self._results and not self._over.is_set():
            messages = self._results.pop(self.heard)
            self.heard += 1
            if deliver(self._who, messages, self._take):
                self._over.set()
        if self._begun == self.heard:
            self._exchange_at(next_tick(asyncio.get_running_loop().time(), REPLY_S))

    def _take(self, message: Any) -> None:
        if isinstance(message, MethodResult):
            self._take_answer(message)
        elif self._receive is not None:
            self._receive(message)

    def _lose(self, error: Exception) -> None:
        self.fail(error if isinstance(error, ActorLost) else ActorLost(f"{self._who}: {one_line_error(error)}"))


class CallReceiver:
    """The actor's side. It calls methods of `target` and puts their results into the outbox."""

    def __init__(self, target: object, outbox: Outbox) -> None:
        self._target, self._outbox = target, outbox
        self._tasks: set[asyncio.Task[None]] = set()

    async def exchange(self, pickled: bytes) -> list[Any]:
        """Begin the calls of an exchange, and wait for messages, unless a newer one takes them."""
        number, calls = pickle.loads(pickled)
        for call in calls:
            task = asyncio.create_task(self._answer(call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await self._outbox.take(number)

    async def _answer(self, call: MethodCall) -> None:
        self._outbox.put(MethodResult(call.number, await self._make(call)))

    @answered
    async def _make(self, call: MethodCall) -> Any:
        return await getattr(self._target, call.method)(*cloudpickle.loads(call.arguments))


def _read_error(failed: Failed) -> Exception:
    try:
        error: Exception = cloudpickle.loads(failed.error)
    except Exception as unreadable:
        return unreadable
    return error


def _pickle(value: Any) -> bytes:
    """Pickle a value. What refers to the script that runs, or is no part of a module, only cloudpickle can send, which
    takes three times as long."""
    with suppress(Exception):
        data = pickle.dumps(value)
        if b"__main__" not in data:
            return data
    portable: bytes = cloudpickle.dumps(value)
    return portable
