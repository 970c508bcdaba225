"""New weights for all members of a pool.

While requests are there, one member after another loads them, so that the others go on sampling; if there are none, all
load at once. What at least one member took are the current weights. Of the others, those that were found dead load them
when they have been started again, and those that refused them are checked and, if they refuse again, started again.
Members that sleep load the current weights when they wake up; if all sleep, new ones become the current ones unseen.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

from ale.errors import AleError
from ale.specs.engine import PolicyVersion
from ale_engines.pool.member import Member, State
from ale_engines.pool.members import Members

ATTEMPTS = 2
"""After this many crashes of a member while it loads the same weights, the weights are held to be the cause."""


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """Why a member did not load weights, and whether it serves nevertheless."""

    error: AleError
    alive: bool


async def update_weights(members: Members, policy: PolicyVersion) -> None:
    """Load weights. Raises the error of a member if all that are awake refuse them; then nothing has changed."""
    refused: dict[Member, AleError] = {}
    attempts: Counter[Member] = Counter()
    while True:
        if (refusal := members.find_refusal()) is not None:
            raise refusal
        awake = [member for member in members if member.living and member.state is not State.ASLEEP]
        old = [member for member in awake if member.policy is not policy and member not in refused]
        todo = [member for member in old if member.serving]
        if todo:
            at_once = 1 if _is_busy(members) else len(todo)
            attempts.update(todo[:at_once])
            failures = await asyncio.gather(*(_load(members, member, policy) for member in todo[:at_once]))
            for member, failure in zip(todo, failures, strict=False):
                if failure is not None and (failure.alive or attempts[member] >= ATTEMPTS):
                    refused[member] = failure.error
        elif members.policy is policy and not any(m.state in (State.SUSPECT, State.LOADING) for m in old):
            break
        elif not awake and not refused:
            members.policy = policy
            break
        elif all(member in refused for member in awake):
            raise next(iter(refused.values()))
        else:
            # A member that is being checked, or catches up, may still sample. One that is started again, or leaves
            # service, may be the only one left.
            await members.admission.wait_for_change()
    for member in refused:
        member.suspect()


def _is_busy(members: Members) -> bool:
    """Return whether something is sampled, or would be if there were a slot."""
    admission = members.admission
    return admission.open and (admission.waiting > 0 or any(member.busy for member in members))


async def _load(members: Members, member: Member, policy: PolicyVersion) -> LoadFailure | None:
    """Load weights into a member, which is suspected if it does not serve afterwards."""
    async with member.lock:
        if not member.serving or member.policy is policy:
            return None  # it was found dead, or its watch was faster
        member.change(State.LOADING)
        try:
            await member.load(policy)
        except AleError as error:
            alive = await member.find_fault() is None
            if not alive:
                member.suspect()
            return LoadFailure(error, alive)
        else:
            members.policy = policy
            return None
        finally:
            member.change(State.SUSPECT if member.suspected.is_set() else State.SERVING)
