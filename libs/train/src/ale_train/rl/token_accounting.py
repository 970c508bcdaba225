"""Token accounting (a *token ledger*): what became of every token that was sampled for training.

    sampled = trained + late + rejected + spare + replaced + lost + open

`sampled` counts the tokens of all stored rollouts of the stage. The parts are counted elsewhere, each at its own
source, so that a token that is missing or counted twice shows in `lost`. In a run that was never interrupted `lost`
is 0; in a resumed one it has the tokens of versions that the interruption undid.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable

from ale.rollout.episode import RL_STAGE
from ale.store.run_store import RunStore
from ale.trajectory import Trajectory
from ale_train.rl.checkpoint import LOST_VERSION
from ale_train.rl.rollout_producer import LATE
from ale_train.rl.spare_rollouts import SPARE

_OF_GROUPS = """SELECT COALESCE(SUM(sampled_tokens), 0) FROM trajectories WHERE stage = ? AND rejected IS NULL
  AND (step, grp) IN (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?))"""
_TRAINED = "SELECT COALESCE(SUM(sampled_tokens), 0) FROM trained JOIN trajectories ON trajectories.id = trajectory"


class TokenAccounting:
    """Counts the tokens of a run's stage `rl`."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._trained = int(store.rows(_TRAINED)[0][0])

    def close(
        self, trained: Iterable[Trajectory], open_groups: Collection[tuple[int, str]], replaced: int
    ) -> dict[str, float]:
        """Return the metrics `tokens/*` after a step, which has `trained` on these rollouts. `open_groups` are (step,
        name) of the groups that may be trained on later, `replaced` the tokens of even groups so far."""
        self._trained += sum(t.sampled_tokens for t in trained)
        sql = "SELECT rejected, SUM(sampled_tokens) FROM trajectories WHERE stage = ? GROUP BY rejected"
        by_reason = {reason: int(tokens) for reason, tokens in self._store.rows(sql, (RL_STAGE,))}
        sampled = sum(by_reason.values())
        kept, undone, late, spare = (by_reason.pop(why, 0) for why in (None, LOST_VERSION, LATE, SPARE))
        waiting = int(self._store.rows(_OF_GROUPS, (RL_STAGE, json.dumps(sorted(open_groups))))[0][0])
        counts = {
            "sampled": sampled,
            "trained": self._trained,
            "late": late,
            "rejected": sum(by_reason.values()),
            "spare": spare,
            "replaced": replaced,
            "open": waiting,
            "lost": undone + kept - self._trained - replaced - waiting,
        }
        return {f"tokens/{name}": float(count) for name, count in counts.items()}
