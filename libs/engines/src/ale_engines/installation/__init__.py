"""`ale engine`: installs the servers, each into a Python environment of its own."""
