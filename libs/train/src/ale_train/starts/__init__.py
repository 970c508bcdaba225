"""Rollouts that start on an expert's path (chunk-level initialized resampling, 3.2.4.4).

1. `start.py`: `ExpertReplay` is the `Start` that an algorithm puts into a `RolloutRequest`.
2. `replies.py`: the expert's replies, and the check that the environment still answers as it did.
3. `states.py`: `ExpertStates` keeps snapshots of sandboxes after an expert's chunks, so that its commands need not run
   in every rollout. `state_replay.py` makes them; `sandboxes.py` records the agent's sandbox calls meanwhile, and
   answers them from the record in later rollouts.
"""

from ale_train.starts.replies import ExpertReplies, expert_steps
from ale_train.starts.start import REPLAY_LOST, ExpertReplay
from ale_train.starts.states import ExpertStates

__all__ = ["REPLAY_LOST", "ExpertReplay", "ExpertReplies", "ExpertStates", "expert_steps"]
