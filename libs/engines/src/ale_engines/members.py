"""The members of a pool together: what all of its parts share. Every change of a member's state goes through here."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from ale.errors import EngineError
from ale.specs.engine import PolicyVersion
from ale_engines.admission import Admission
from ale_engines.member import Member, State
from ale_engines.replica import Replica


class Members:
    """See the module."""

    def __init__(self, replicas: Iterable[Replica], note: Callable[[str], None]) -> None:
        """`note` reports a sentence to the user."""
        self.note = note
        self.admission = Admission(self.find_refusal)
        self.policy: PolicyVersion | None = None
        """The current weights, those that a member must have to serve; None for the model's own."""
        self.counts: Counter[str] = Counter()
        self.awake = asyncio.Event()
        """Cleared while the members sleep: they are neither checked nor started again then."""
        self.awake.set()
        self.last_fault = ""
        """Why the last member was given up."""
        self._all: list[Member] = []
        self.closed = False
        for replica in replicas:
            self.add(Member.of(replica))

    def __iter__(self) -> Iterator[Member]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def add(self, member: Member) -> None:
        """Add a member; its state says whether it serves."""
        self._all.append(member)
        self.admission.router.places.append(member)
        self.admission.serve()

    def remove(self, member: Member) -> None:
        """Remove a member, with what the router knows of it."""
        self._all.remove(member)
        self.admission.router.places.remove(member)
        self.admission.router.forget(member)
        self.admission.serve()

    def change(self, member: Member, state: State) -> None:
        """Change a member's state."""
        member.change(state)
        self.admission.serve()

    def close(self) -> None:
        """Refuse all requests from now on, also those that wait."""
        self.closed = True
        self.admission.serve()

    def find_refusal(self) -> EngineError | None:
        """Return the error of requests that no member will ever serve; None if one may."""
        if self.closed:
            return EngineError("The pool of engines is closed.")
        if any(member.living for member in self):
            return None
        if any(member.state is State.EMPTY for member in self):
            return EngineError("The engines have no model yet; call load_model first.")
        return EngineError(f"No replica of the engine is left. {self.last_fault}")
