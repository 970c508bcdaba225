"""The members of a pool together: what all of its parts share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator

from ale.errors import EngineError
from ale.specs.engine import PolicyVersion
from ale_engines.pool.admission import Admission
from ale_engines.pool.member import Member, State
from ale_engines.pool.replica import Replica


class Members:
    """The members, the queue in front of them, and the current weights."""

    def __init__(self, replicas: Iterable[Replica], note: Callable[[str], None]) -> None:
        """`note` reports a sentence to the user."""
        self.note = note
        self.admission = Admission(self.find_refusal)
        self.policy: PolicyVersion | None = None
        """The current weights, those that a member must have to serve; None for the model's own."""
        self.counts: Counter[str] = Counter()
        self.listeners: list[Callable[[], None]] = []
        """Called after every change of a member's state or version, and after one has joined or left. They must not
        wait or raise."""
        self.deliver_changes: Callable[[], Awaitable[object]] = _deliver_nothing
        """Returns when all other processes that dispatch to the same replicas know all changes so far."""
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

    def find(self, name: str) -> Member | None:
        """Return the member of a name."""
        return next((member for member in self._all if member.name == name), None)

    def add(self, member: Member) -> None:
        """Add a member; its state says whether it serves."""
        member.on_change = self.announce
        self._all.append(member)
        self.admission.router.targets.append(member)
        self.announce()

    def remove(self, member: Member) -> None:
        """Remove a member, with what the router knows of it."""
        self._all.remove(member)
        self.admission.router.targets.remove(member)
        self.admission.router.forget(member)
        self.announce()

    def announce(self) -> None:
        """Give slots to requests that wait, and call the listeners, because a member has changed."""
        self.admission.serve()
        if not self.closed:
            for listener in self.listeners:
                listener()

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


async def _deliver_nothing() -> None:
    """Do nothing: no other process dispatches."""
