"""The watchdog notices that nothing moves, finds which part hangs, ends what hangs once, and then ends the run.

1. *Progress* is a model call that was answered, a token, a rollout that began or ended, or a new state of the trainer.
   Without any for `rl.stall_s` seconds while a group is open, the loop is stalled.
2. A thread checks, so that it also sees what blocks the event loop itself (an observer's hook, the store).
3. First an event `stalled` is stored with the oldest rollouts, the roles' states and the stacks, and it mends: what
   blocks the event loop is interrupted with an error; rollouts that hang are ended as failures of the part that hangs,
   and made again; an engine that hangs is asked to resume. The watchdog only waits for a store that hangs. If requests
   are at the engine, it is the engine that hangs: what waits for it may be an agent that calls over HTTP.
4. If it is stalled again before a rollout is good or the trainer goes on, the run fails with a sentence.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

from ale.errors import AgentError, AleError, EngineError, PluginError, SandboxError
from ale.registry.foreign_code import run_apart
from ale.rollout.episode import Episodes
from ale_train.workbench.workbench import Workbench

log = logging.getLogger("ale.rl")
LOOKS = 10
"""It looks so many times within `stall_s`, and at least once a second."""
ANSWER_S = 10.0
"""An event loop that does not answer for this long, or for `stall_s`, is blocked. A busy machine may hold it up for
some seconds."""
OLDEST, MAX_STACKS = 5, 40
STORE, ENGINE, REWARD, COMMAND, AGENT = "the store", "the engine", "the reward", "a command in a sandbox", "the agent"
WORKER = "a rollout worker"
"""Another process makes the episode, and its part cannot be seen from here."""
ERRORS: dict[str, type[AleError]] = {
    ENGINE: EngineError, COMMAND: SandboxError, AGENT: AgentError, WORKER: SandboxError
}  # fmt: skip


class Watchdog:
    """Watches a loop. `moves` returns a value that changes whenever something has moved, `achieved` one that changes
    whenever that was of use, `is_open` whether work is left, and `facts` what the event shows besides."""

    def __init__(
        self,
        bench: Workbench,
        stall_s: float,
        moves: Callable[[], Hashable],
        achieved: Callable[[], Hashable],
        is_open: Callable[[], bool],
        facts: Callable[[], dict[str, Any]],
    ) -> None:
        self._bench, self._stall_s = bench, stall_s
        self._moves, self._achieved, self._is_open, self._facts = moves, achieved, is_open, facts
        self._over = threading.Event()
        self._thrown: AleError | None = None
        """The error that the loop's thread raises when it gets the signal."""
        self.failed = False

    async def run(self) -> None:
        """Watch until it is cancelled. Raises `AleError` if the run is stalled and could not be mended."""
        if not self._stall_s:
            return
        self._loop, self._failure = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
        self._loop_thread, in_main = threading.get_ident(), threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGUSR1, self._throw) if in_main else None
        self._can_interrupt = in_main  # only a main thread can get a signal
        thread = threading.Thread(target=self._watch, name="ale-watchdog", daemon=True)
        thread.start()
        try:
            await self._failure
        finally:
            self._over.set()
            if in_main:
                signal.signal(signal.SIGUSR1, before)

    def _watch(self) -> None:
        try:
            self._look()
        except Exception:  # a mistake here must not pass for a run that is watched
            log.exception("the watchdog has failed: from now on nothing notices if the run hangs")

    def _look(self) -> None:
        last: Hashable = None
        mended_at: Hashable = None
        since = time.monotonic()
        while not self._over.wait(min(1.0, self._stall_s / LOOKS)):
            try:
                moves = self._moves()
            except RuntimeError:  # what it reads has changed meanwhile
                moves = object()
            if moves != last or not self._is_open():
                last, since = moves, time.monotonic()
            elif time.monotonic() - since >= self._stall_s:
                since = time.monotonic()
                blocked = not self._answers()
                try:
                    part, stacks = self._blocking() if blocked else self._ask(self._hanging())
                except TimeoutError:  # it has been blocked just now
                    blocked, (part, stacks) = True, self._blocking()
                sentence = f"Nothing has moved for {self._stall_s:g} s: {part} hangs."
                self._report(part, stacks, sentence)
                if mended_at == self._achieved():
                    return self._fail(blocked, part, sentence)
                mended_at = self._achieved()
                self._mend(blocked, part, sentence)

    def _answers(self) -> bool:
        """Return whether the event loop runs."""
        answered = threading.Event()
        self._loop.call_soon_threadsafe(answered.set)
        return answered.wait(min(ANSWER_S, self._stall_s))

    def _ask(self, question: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(question, self._loop).result(self._stall_s)

    def _blocking(self) -> tuple[str, list[str]]:
        """Return the part that blocks the event loop, and where."""
        frame = sys._current_frames().get(self._loop_thread)
        frames: list[FrameType] = []
        while frame is not None:
            frames.insert(0, frame)
            frame = frame.f_back
        return part_of(frames) or "something that blocks the event loop", [_stack(frames)]

    async def _hanging(self) -> tuple[str, list[str]]:
        """Return the part in which the store, else the oldest rollout, else the trainer, hangs, and where all tasks
        are."""
        everywhere = [list(await_chain(task)) for task in asyncio.all_tasks()]
        stacks = sorted(set(map(_stack, everywhere)))[:MAX_STACKS]
        if STORE in map(part_of, everywhere):  # whatever waits for it hangs as well
            return STORE, stacks
        chains = [list(await_chain(task)) for task in self._bench.rollouts.running]
        parts = [part for chain in chains if (part := part_of(chain)) is not None]
        facts = self._facts()
        working = not facts["trainer"].startswith("wait_") and f"the trainer ({facts['trainer']})"
        if facts["engine"] == "busy":
            parts.insert(0, ENGINE)
        return working or (parts[0] if parts else "the loop"), stacks

    def _report(self, part: str, stacks: list[str], sentence: str) -> None:
        log.error("%s\n%s", sentence, "\n".join(stacks))
        if part != STORE:
            oldest = [
                {"task": request.task.id, "group": request.group, "seed": request.seed}
                for request in list(self._bench.rollouts.running.values())[:OLDEST]
            ]
            self._bench.store.add_event("stalled", part=part, oldest=oldest, stacks=stacks, **self._facts())

    def _mend(self, blocked: bool, part: str, sentence: str) -> None:
        if part == STORE:
            return
        if blocked:
            self._interrupt(PluginError(sentence))
        else:
            with suppress(TimeoutError):
                self._ask(self._end_hanging(part, sentence))

    async def _end_hanging(self, part: str, sentence: str) -> None:
        """End the rollouts that hang in a part as its failures, which makes them again."""
        running = {task: part_of(list(await_chain(task))) for task in self._bench.rollouts.running}
        parts = {part}
        if part == ENGINE and ENGINE not in running.values():
            parts = {AGENT, COMMAND, WORKER}  # agents that call over HTTP, and episodes of other processes
        for task, of in running.items():
            if of in parts:
                self._bench.rollouts.episodes.ended[task] = ERRORS.get(part, PluginError)(sentence)
                task.cancel()
        if part == ENGINE:
            with suppress(Exception):  # a plugin may raise anything; if that was of no use, the run fails next
                async with asyncio.timeout(self._stall_s / 2):
                    await self._bench.engine.resume()

    def _fail(self, blocked: bool, part: str, sentence: str) -> None:
        """End the run: by an error in the event loop, and in what blocks it; a store that hangs cannot be closed."""
        self.failed = True
        error = AleError(f"{sentence} Ending what hung did not help; 'ale run --resume' goes on with this run.")
        if part == STORE:
            print(f"error: {error}", file=sys.stderr, flush=True)
            os._exit(AleError.exit_code)

        def set_failure() -> None:
            if not self._failure.done():
                self._failure.set_exception(error)

        self._loop.call_soon_threadsafe(set_failure)
        if blocked:
            self._interrupt(error)

    def _interrupt(self, error: AleError) -> None:
        if self._can_interrupt:
            self._thrown = error
            signal.pthread_kill(self._loop_thread, signal.SIGUSR1)

    def _throw(self, number: int, frame: FrameType | None) -> None:
        thrown, self._thrown = self._thrown, None
        if thrown is not None:
            raise thrown


def await_chain(task: asyncio.Task[Any]) -> Iterator[FrameType]:
    """Yield the frames of the coroutines of a task, from its own to the innermost one that waits, and on into the task
    of what it runs apart."""
    at: Any = task.get_coro()
    while at is not None:
        frame = getattr(at, "cr_frame", None) or getattr(at, "gi_frame", None) or getattr(at, "ag_frame", None)
        if frame is not None:
            yield frame
            if frame.f_code is run_apart.__code__ and "apart" in frame.f_locals:
                at = frame.f_locals["apart"].get_coro()
                continue
        at = getattr(at, "cr_await", None) or getattr(at, "gi_yieldfrom", None) or getattr(at, "ag_await", None)


def part_of(frames: list[FrameType]) -> str | None:
    """Return the part of a run that these frames, outermost first, are in."""
    part: str | None = None
    for frame in frames:
        code, values = frame.f_code, frame.f_locals
        if code.co_filename.endswith("ale/registry/hooks.py") and {"implementation", "name"} <= values.keys():
            return f"the hook {values['name']} of the observer '{values['implementation'].plugin_name}'"
        if "/ale/store/" in code.co_filename:
            return STORE
        if code.co_name == "_sample" and code.co_filename.endswith("ale/session/session.py"):
            return ENGINE
        if code.co_name == "guard_plugin_call":
            part = {"reward": REWARD, "scaffold": AGENT}.get(values["kind"], "the sandbox plugin")
        elif code.co_name == "_act" and part in (None, WORKER):
            part = AGENT
        elif _waits_for_worker(frame):
            part = WORKER
        elif code.co_name == "exec" and part in (AGENT, REWARD):
            part = COMMAND
    return part


def is_episode(frame: FrameType) -> bool:
    """Return whether a frame is that of an episode."""
    return frame.f_code is Episodes.run.__code__ or _waits_for_worker(frame)


def _waits_for_worker(frame: FrameType) -> bool:
    """Return whether a frame is that of an episode that is made in another process."""
    episodes = frame.f_locals.get("self")
    if not isinstance(episodes, Episodes) or frame.f_code is Episodes.run.__code__:
        return False
    return frame.f_code is type(episodes).run.__code__


def _stack(frames: list[FrameType]) -> str:
    return " > ".join(f"{f.f_code.co_filename.rpartition('/')[2]}:{f.f_lineno} {f.f_code.co_name}" for f in frames[-8:])
