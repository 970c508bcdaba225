"""What people see of a run: the progress display (`progress.py`) and the report page (`report.py`)."""
