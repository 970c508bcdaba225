"""The pipeline: `run.py` reads from top to bottom; installed packages define the training stages (`stage.py`)."""
