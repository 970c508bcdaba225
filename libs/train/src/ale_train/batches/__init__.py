"""Packs trajectories into batches (`packing.py`), and splits batches (`splitting.py`)."""

from ale_train.batches.packing import Credit, count_tokens, pack
from ale_train.batches.splitting import select, split

__all__ = ["Credit", "count_tokens", "pack", "select", "split"]
