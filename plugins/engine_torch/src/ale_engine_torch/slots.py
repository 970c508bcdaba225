"""What the slots of the KV cache hold: token ids, computed with which weights, of which session.

Rows `0..active` decode; the rows behind them are idle and keep what they have computed until somebody needs the slot.
Everything is in flat arrays, so that one prompt is compared with all slots at once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

SHARE_MIN = 16
"""A common prefix shorter than this is computed again rather than copied."""


class SlotTable:
    """Bookkeeping of the cache; the decoder's tensors follow it row by row."""

    def __init__(self, slots: int, max_context: int) -> None:
        self.count = slots
        self.active = 0
        self.weights = 0
        """Number of the weights in use; what was computed with others is void."""
        self.length = np.zeros(slots, dtype=np.int64)
        """Positions of each slot that the cache holds."""
        self._tokens = np.zeros((slots, max_context), dtype=np.int32)
        self._computed_with = np.full(slots, -1, dtype=np.int64)
        self._used = np.zeros(slots, dtype=np.int64)
        self._session = [""] * slots
        self._clock = 0

    def common(self, prompt: IntArray) -> IntArray:
        """For each slot, how much of the prompt it holds for the present weights; one token is left to compute."""
        limit = len(prompt) - 1
        if limit <= 0:
            return np.zeros(self.count, dtype=np.int64)
        differs = self._tokens[:, :limit] != prompt[None, :limit]
        same = np.where(differs.any(axis=1), differs.argmax(axis=1), limit)
        same = np.minimum(same, self.length)
        return np.where(self._computed_with == self.weights, same, 0)

    def idle_row(self, session: str) -> int:
        """The row that a session's next call takes: its own, else an empty or void one, else the longest idle."""
        if session and session in self._session:
            for row in range(self.active, self.count):
                if self._session[row] == session:
                    return row
        age = np.where(self._computed_with == self.weights, self._used, -1)
        return self.active + int(age[self.active :].argmin())

    def occupy(self, row: int, session: str, prompt: IntArray) -> None:
        """A job's prompt is (about to be) computed in a row with the present weights."""
        self._session[row] = session
        self._tokens[row, : len(prompt)] = prompt
        self.length[row] = len(prompt)
        self._computed_with[row] = self.weights

    def append(self, rows: int, tokens: IntArray) -> IntArray:
        """One more token in each of the first `rows` rows; returns their positions."""
        positions = self.length[:rows].copy()
        self._tokens[np.arange(rows), positions] = tokens
        self.length[:rows] += 1
        return positions

    def touch(self, row: int) -> None:
        """The row was in use just now."""
        self._clock += 1
        self._used[row] = self._clock

    def swap(self, a: int, b: int) -> None:
        """Exchange two rows."""
        pair, other = [a, b], [b, a]
        for column in (self.length, self._tokens, self._computed_with, self._used):
            column[pair] = column[other]
        self._session[a], self._session[b] = self._session[b], self._session[a]

    def held(self, a: int, b: int) -> int:
        """How many positions a swap of two rows has to move; nothing of a void idle row is worth moving."""
        return int(max(self._worth(a), self._worth(b)))

    def _worth(self, row: int) -> int:
        void = row >= self.active and self._computed_with[row] != self.weights
        return 0 if void else int(self.length[row])

    def clear(self) -> None:
        """Forget everything; all rows are idle."""
        self.active = 0
        self.length[:] = 0
        self._computed_with[:] = -1
        self._session = [""] * self.count

    def misplaced(self, tail: int, margin: int) -> tuple[int, int] | None:
        """The longest row before the last `tail` active ones and the shortest of those, if it is shorter by far."""
        body = self.active - tail
        if body < tail:
            return None
        long, short = int(self.length[:body].argmax()), body + int(self.length[body : self.active].argmin())
        return (long, short) if self.length[long] - self.length[short] >= margin else None
