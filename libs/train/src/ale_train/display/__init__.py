"""How far a run is: one live line at a terminal (`live_line.py`), plain lines elsewhere (`plain_lines.py`)."""
