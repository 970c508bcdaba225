"""Engines that are servers: how one is started, asked and ended (`replica.py`), and what a plugin says of its own
(`contract.py`)."""
