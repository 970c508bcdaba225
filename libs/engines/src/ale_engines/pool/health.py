"""A task for each member of a pool checks it, and starts it again if it has failed."""

from __future__ import annotations

import asyncio

from ale.errors import AleError
from ale_engines.pool.member import Member, State
from ale_engines.pool.members import Members

RESTARTS = 3
"""A member that was started so many times in a row, without finishing one generation, is given up."""
BACKOFF_S = 2.0
"""Seconds before the second restart in a row; twice as many before the third."""


def watch(members: Members, member: Member) -> None:
    """Start the task `member.watch`, unless it runs or the pool is closed."""
    if not members.closed and (member.watch is None or member.watch.done()):
        member.watch = asyncio.get_running_loop().create_task(_care_for(members, member))


async def _care_for(members: Members, member: Member) -> None:
    while member.state is not State.FAILED:
        await member.wait_for_check()
        async with member.lock:
            if member.state not in (State.SERVING, State.SUSPECT):
                continue
            fault = await member.find_fault() or await catch_up(members, member)
            if fault is None:
                member.change(State.SERVING)
            else:
                await _revive(members, member, fault)


async def catch_up(members: Members, member: Member) -> AleError | None:
    """Load the current weights if a member has older ones; return the error if it cannot. There may be newer ones
    meanwhile, and the folder of the old ones is removed then. With no error it has the current ones when this
    returns. The caller holds its lock."""
    # There are none when `load_model` has begun: it waits for the lock, and then replaces all.
    while (policy := members.policy) is not None and member.policy is not policy:
        if member.state is State.SERVING:
            member.change(State.LOADING)
        try:
            await member.load(policy)
        except AleError as error:
            if members.policy is policy:
                return error
    return None


async def _revive(members: Members, member: Member, fault: AleError) -> None:
    """Start a member until it has the current weights, or give it up."""
    member.change(State.LOST)
    members.admission.router.forget(member)
    what, _, _log = str(fault).partition("\n")
    members.note(f"{member.name} is started again: {what}")
    while member.failures < RESTARTS:
        if member.failures:
            await asyncio.sleep(BACKOFF_S * 2 ** (member.failures - 1))
        member.failures += 1
        members.counts["restarts"] += 1
        try:
            await member.restart()
        except AleError as error:
            fault = error
            continue
        if (error_of_weights := await catch_up(members, member)) is not None:
            fault = error_of_weights
            continue
        member.change(State.SERVING)
        members.note(f"{member.name} serves again, with version {member.version}.")
        return
    members.last_fault = f"{member.name} was started {RESTARTS} times in a row in vain: {fault}"
    members.note(f"{member.name} is given up: it was started {RESTARTS} times in a row in vain.")
    member.change(State.FAILED)
    await member.close()
