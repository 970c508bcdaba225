"""Members that sleep for a while, so that something else may use their memory, such as the trainer.

1. A member that is to sleep gets no more requests (`LEAVING`). Once all who send some know that, what it generates is
   interrupted, and goes on at another member or waits for one. Then its memory is freed (`ASLEEP`).
2. One that wakes up takes the memory again and loads the current weights, then it serves. Until then it counts as
   asleep, so that newer weights do not wait for it.
3. One that cannot fall asleep or wake up is started again by its watch (`health.py`). One that shall sleep tries once
   more then.

Its lock is held all the time: no check, restart or update comes in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any

from ale.errors import AleError, EngineError
from ale_engines.pool.health import catch_up
from ale_engines.pool.member import Member, State
from ale_engines.pool.members import Members

KNOWN_S = 5.0
"""Seconds for which a member that leaves service waits until all who dispatch to it know that: one may have stopped."""
END_S = 5.0
"""Seconds after which a member leaves service even if a generation has not ended."""
POLL_S = 0.05
TRIES = 2


async def put_to_sleep(members: Members, chosen: Sequence[Member]) -> None:
    """Put members to sleep, all at once; one that sleeps already, or is given up, stays as it is. Raises the first
    `AleError` of one that cannot sleep, also after it was started again."""
    await finish_all(_put_to_sleep(members, member) for member in chosen)


async def wake_up(members: Members, chosen: Sequence[Member]) -> None:
    """Have members that sleep serve again, all at once. It raises nothing: one that fails is started again."""
    await finish_all(_wake_up(members, member) for member in chosen)


async def end_generations(members: Members, member: Member) -> None:
    """Interrupt what a member that leaves service generates, and return when nothing is left of it, or a few seconds
    later. Raises `AleError` if it cannot be interrupted.

    First all senders learn that the member leaves. A sender that did not know would take the interruption for a fault,
    and might send the rest of the generation there again."""
    with suppress(TimeoutError):
        async with asyncio.timeout(KNOWN_S):
            await members.deliver_changes()
    try:
        async with asyncio.timeout(END_S):
            await member.interrupt()
            while member.busy:
                await asyncio.sleep(POLL_S)
                if member.replica.requests:  # sent by somebody who did not know yet that it leaves
                    await member.interrupt()
    except TimeoutError:
        members.note(f"{member.name} leaves service, although it has not ended all generations within {END_S:g} s.")


async def finish_all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines at once, each to its end, and raise the first of their errors."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def _put_to_sleep(members: Members, member: Member) -> None:
    tries = 0
    while True:
        while member.ailing:  # it is checked and, if need be, started again first
            await members.admission.wait_for_change()
        async with member.lock:
            if member.ailing:
                continue
            if member.state is not State.SERVING:
                return
            member.change(State.LEAVING)
            tries += 1
            try:
                await end_generations(members, member)
                await member.sleep()
            except BaseException as error:
                fault = error if isinstance(error, AleError) else EngineError(f"{member.name} did not fall asleep.")
                member.require_restart(fault)
                if fault is error and tries < TRIES:
                    continue
                raise
            members.admission.router.forget(member)  # its cache is lost
            member.change(State.ASLEEP)
            return


async def _wake_up(members: Members, member: Member) -> None:
    async with member.lock:
        if member.state is not State.ASLEEP:
            return
        fault: AleError | None = EngineError(f"{member.name} did not wake up.")
        try:
            await member.wake()
            fault = await catch_up(members, member)
        except AleError as error:
            fault = error
        finally:
            if fault is None:
                member.change(State.SERVING)
            else:
                member.require_restart(fault)
