"""A run from beginning to end: checked (`preflight.py`), made of stages (`stages.py`), executed (`run.py`)."""
