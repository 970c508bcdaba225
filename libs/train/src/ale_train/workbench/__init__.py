"""The open parts of a run: drivers, sessions and store (`workbench.py`), the drivers' channel to the run
(`channel.py`), publishing of weights, the contract of a training stage, and the interface of the progress display."""
