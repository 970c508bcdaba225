"""When engines on the trainer's machines should sample, and when they should give these back (pure code).

1. *Shrink*: the trainer takes its machines back once its batch is there, or once the rest of the engines will have
   finished it by the time the machines have changed sides. What the lent engines sample must fit the others' memory.
2. *Expand*: after an update the machines are lent only if the trainer is expected to wait for longer than lending and
   taking back cost.
3. The expectation follows what was measured: a wait that lending did not shorten by as much as it cost makes lending
   less likely.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Multiplexing:
    """It decides for batches of `batch_size` groups. `expected_wait_s` is its estimate of the trainer's next wait."""

    batch_size: int
    weight: float = 0.5
    """Of the newest wait in the estimate."""
    expected_wait_s: float = 0.0

    def shrink(self, ready: int, soon: int, kv_in_flight: float, kv_of_rest: float) -> bool:
        """Return whether the trainer should take its machines back: `ready` groups are finished, and `soon` more are by
        the time that the machines have changed sides."""
        return ready + soon >= self.batch_size and kv_in_flight <= kv_of_rest

    def expand(self, ready: int, waited_s: float, cost_s: float) -> bool:
        """Return whether engines should be lent after an update, before which the trainer has waited `waited_s`;
        `cost_s` is the time for lending and taking back."""
        self.expected_wait_s += self.weight * (waited_s - self.expected_wait_s)
        return ready < self.batch_size and self.expected_wait_s > cost_s
