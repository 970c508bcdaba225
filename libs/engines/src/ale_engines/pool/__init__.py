"""Several replicas of a model behind the contract of one engine (`engines.py`)."""
