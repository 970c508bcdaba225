"""When engines on the trainer's machines should sample, and when they should give these back (pure code).

1. *Shrink*: the trainer takes its machines back once its batch is there, or once the rest of the engines will have
   finished it by the time the machines have changed sides. What the lent engines sample must fit the others' memory.
2. *Expand*: after an update the machines are lent if the trainer would wait longer without that, by more than lending
   and taking back cost.
3. Both waits are measured: the one of the last step is of the state in which it was, and moves the estimate of that
   state. The other one's estimate follows slowly what is to be expected of it: with a part `share` of the engines
   gone, the same work takes 1 / (1 - share) times as long.
"""

from __future__ import annotations

from dataclasses import dataclass, field

DRIFT = 0.1
"""Of the expectation in the estimate of a wait that is not measured at present."""


@dataclass(slots=True)
class Multiplexing:
    """It decides for batches of `batch_size` groups, where `share` of all engines can be lent."""

    batch_size: int
    share: float
    lending: bool = True
    """What it decided last."""
    weight: float = 0.5
    """Of the newest wait in the estimate."""
    waits: dict[bool, float] = field(default_factory=dict)
    """The trainer's expected wait in seconds, with and without lending."""

    def shrink(self, ready: int, soon: int, kv_in_flight: float, kv_of_rest: float) -> bool:
        """Return whether the trainer should take its machines back: `ready` groups are finished, and `soon` more are by
        the time that the machines have changed sides."""
        return ready + soon >= self.batch_size and kv_in_flight <= kv_of_rest

    def expand(self, ready: int, waited_s: float, cost_s: float) -> bool:
        """Return whether engines should be lent after an update, before which the trainer has waited `waited_s`;
        `cost_s` is the time for lending and taking back."""
        measured, other = self.lending, not self.lending
        self._move(measured, waited_s, self.weight)
        rest = 1.0 - self.share
        self._move(other, self.waits[measured] * (1.0 / rest if measured else rest), DRIFT)
        saved = self.waits[False] - self.waits[True]
        self.lending = ready < self.batch_size and saved > cost_s
        return self.lending

    def _move(self, lending: bool, seconds: float, weight: float) -> None:
        before = self.waits.get(lending, seconds)
        self.waits[lending] = before + weight * (seconds - before)
