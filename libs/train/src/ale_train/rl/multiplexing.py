"""Decides when engines on the trainer's devices should sample, and when they should give these back (pure code).

1. *Shrink*: the trainer takes its machines back once its batch is there, or once the rest of the engines will have
   finished it by the time the machines have changed sides. What the lent engines sample must fit the others' memory.
2. *Expand*: after an update the machines are lent if the trainer would wait longer without that, by more than lending
   and taking back cost.
3. One estimate serves both states: the trainer's wait without lending. A wait while engines were lent counts as what it
  would have been without them: with a part `share` of the engines gone, the same work takes 1 / (1 - share) times as
  long. Estimates for each state would drift apart by chance: a long wait would speak against the state in which it
  was, though waits differ more between batches than between states.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Multiplexing:
    """The policy for batches of `batch_size` groups, where the part `share` of all engines can be lent."""

    batch_size: int
    share: float
    lending: bool = True
    """The last decision."""
    weight: float = 0.5
    """The weight of the newest wait in the estimate."""
    wait_s: float | None = None
    """The trainer's expected wait without lending; None before the first one."""

    def shrink(self, ready: int, soon: int, kv_in_flight: float, kv_of_rest: float) -> bool:
        """Return whether the trainer should take its machines back: `ready` groups are finished, and `soon` more are by
        the time that the machines have changed sides."""
        return ready + soon >= self.batch_size and kv_in_flight <= kv_of_rest

    def expand(self, ready: int, waited_s: float, cost_s: float) -> bool:
        """Return whether engines should be lent after an update, before which the trainer has waited `waited_s`;
        `cost_s` is the time for lending and taking back."""
        rest = 1.0 - self.share
        without_s = waited_s / rest if self.lending else waited_s
        before_s = without_s if self.wait_s is None else self.wait_s
        self.wait_s = before_s + self.weight * (without_s - before_s)
        self.lending = ready < self.batch_size and self.share * self.wait_s > cost_s
        return self.lending
