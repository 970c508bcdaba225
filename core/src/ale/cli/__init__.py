"""The `ale` command line: `main.py` names the commands, one module beside it does the work of each."""
