"""This package shows how far a run is: as one live line at a terminal, as plain lines elsewhere.

Import its modules by name: `live_line` needs rich, and the others do not.
"""
