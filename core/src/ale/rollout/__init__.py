"""Rollouts: one episode (`episode.py`), what makes one unreliable (`filters.py`), many at once (`scheduler.py`)."""
