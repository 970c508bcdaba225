"""Reinforcement learning: the loop (`loop.py`) and its stages (`stages.py`).

- Rollouts: `rollout_producer.py` makes groups of them for the `sample_buffer.py`, `rollout_slots.py` and
  `concurrency_limit.py` bound how many run, `spare_rollouts.py` replaces slow ones, `task_selection.py` chooses tasks.
- Training: `train_step.py` packs a batch and trains on it, `device_sharing.py` and `multiplexing.py` have engines and
  trainer use the same devices in turns, `collapse_guard.py` stops a policy that collapses.
- Around both: `checkpoint.py`, `watchdog.py`, and the metrics (`loop_metrics.py`, `rollout_metrics.py`,
  `utilization.py`, `token_accounting.py`).
- `single_phase.py` runs rollouts or training alone (`ale run --only`).
"""
