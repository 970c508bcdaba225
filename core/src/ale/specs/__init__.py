"""The contracts: one file a kind. The code is the reference; shapes and units stand in its docstrings."""
