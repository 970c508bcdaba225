"""The `ale` command line: `main.py` defines the commands, and one module for each command does the work."""
