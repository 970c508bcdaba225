"""Rollouts: one episode (`episode.py`), rejection (`filters.py`), and many episodes at once (`scheduler.py`)."""
