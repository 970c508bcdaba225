"""The pipeline: `run.py` reads from top to bottom; one file a stage beside it."""
