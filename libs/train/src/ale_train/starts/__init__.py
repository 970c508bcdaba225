"""Rollouts that start on an expert's path (chunk-level initialized resampling, 3.2.4.4).

1. `expert_replay.py`: `ExpertReplay` is the `Start` that an algorithm puts into a `RolloutRequest`.
2. `expert_replies.py` has the expert's replies, and checks that the environment still answers as it did.
3. `snapshots.py`: `ExpertStates` keeps snapshots of sandboxes after an expert's chunks, so that its commands need not
   run in every rollout. `snapshot_replay.py` makes them; `recording_sandbox.py` records the agent's sandbox calls
   meanwhile, and answers them from the record in later rollouts.
"""

from ale_train.starts.expert_replay import REPLAY_LOST, ExpertReplay
from ale_train.starts.expert_replies import ExpertReplies, expert_steps
from ale_train.starts.snapshots import ExpertStates

__all__ = ["REPLAY_LOST", "ExpertReplay", "ExpertReplies", "ExpertStates", "expert_steps"]
