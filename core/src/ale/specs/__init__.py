"""The contracts of plugins, one file for each kind. The docstrings define shapes and units."""
