"""This package does reinforcement learning: the loop (`loop.py`), its halves (`halves.py`), and the choice of its tasks
(`task_selection.py`, `dynamic_sampling.py`). It also has the command `ale eval` (`eval_command.py`)."""
