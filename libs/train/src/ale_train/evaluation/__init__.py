"""The evaluations of a run: the section `eval` (`section.py`), one evaluation (`evaluate.py`), its figures
(`figures.py`), and estimates over tasks with their intervals (`estimates.py`)."""
