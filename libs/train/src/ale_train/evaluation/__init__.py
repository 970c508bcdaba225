"""Evaluations of a policy on held-out tasks: one evaluation (`evaluate.py`), its metrics (`metrics.py`), estimates over
tasks with confidence intervals (`estimates.py`), and its results as text (`describe.py`)."""
