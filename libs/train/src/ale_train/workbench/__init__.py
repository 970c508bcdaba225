"""What a run has open: its drivers, sessions and store (`workbench.py`), its channel, and how weights are published."""
