"""The table of the KV cache's slots: the tokens, session and weights of each.

Rows `0..active` decode; the rows after them are idle and keep their cache until another session needs the slot.
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
        """The number of the weights in use; caches that were computed with other weights are void."""
        self.length = np.zeros(slots, dtype=np.int64)
        """Positions of each slot that the cache holds."""
        self._tokens = np.zeros((slots, max_context), dtype=np.int32)
        self._computed_with = np.full(slots, -1, dtype=np.int64)
        self._used = np.zeros(slots, dtype=np.int64)
        self._session = [""] * slots
        self._clock = 0

    def shared_prefixes(self, prompt: IntArray) -> IntArray:
        """For each slot, the length of the prefix that it shares with the prompt, at most all but the last token."""
        limit = len(prompt) - 1
        if limit <= 0:
            return np.zeros(self.count, dtype=np.int64)
        differs = self._tokens[:, :limit] != prompt[None, :limit]
        same = np.where(differs.any(axis=1), differs.argmax(axis=1), limit)
        same = np.minimum(same, self.length)
        return np.where(self._computed_with == self.weights, same, 0)

    def idle_row(self, session: str) -> int:
        """The row for a session's next call: its own, else an empty or void one, else the one idle longest."""
        if session and session in self._session:
            for row in range(self.active, self.count):
                if self._session[row] == session:
                    return row
        age = np.where(self._computed_with == self.weights, self._used, -1)
        return self.active + int(age[self.active :].argmin())

    def occupy(self, row: int, session: str, prompt: IntArray) -> None:
        """Record that a row gets a job's prompt, computed with the present weights."""
        self._session[row] = session
        self._tokens[row, : len(prompt)] = prompt
        self.length[row] = len(prompt)
        self._computed_with[row] = self.weights

    def append(self, rows: int, tokens: IntArray) -> IntArray:
        """Append a token to each of the first `rows` rows; return their positions."""
        positions = self.length[:rows].copy()
        self._tokens[np.arange(rows), positions] = tokens
        self.length[:rows] += 1
        return positions

    def mark_used(self, row: int) -> None:
        """Record that the row was in use just now."""
        self._clock += 1
        self._used[row] = self._clock

    def swap(self, a: int, b: int) -> None:
        """Exchange two rows."""
        pair, other = [a, b], [b, a]
        for column in (self.length, self._tokens, self._computed_with, self._used):
            column[pair] = column[other]
        self._session[a], self._session[b] = self._session[b], self._session[a]

    def positions_to_move(self, a: int, b: int) -> int:
        """How many positions a swap of two rows has to move; the cache of a void idle row is not moved."""
        return int(max(self._positions_worth_moving(a), self._positions_worth_moving(b)))

    def _positions_worth_moving(self, row: int) -> int:
        void = row >= self.active and self._computed_with[row] != self.weights
        return 0 if void else int(self.length[row])

    def clear(self) -> None:
        """Forget everything; all rows are idle."""
        self.active = 0
        self.length[:] = 0
        self._computed_with[:] = -1
        self._session = [""] * self.count

    def find_misplaced_rows(self, tail: int, margin: int) -> tuple[int, int] | None:
        """The longest row before the last `tail` active rows, and the shortest of the latter; None where they differ by
        less than `margin`."""
        body = self.active - tail
        if body < tail:
            return None
        long, short = int(self.length[:body].argmax()), body + int(self.length[body : self.active].argmin())
        return (long, short) if self.length[long] - self.length[short] >= margin else None
