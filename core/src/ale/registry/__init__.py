"""The registry knows what is installed and loads it: discovery, drivers, hooks, versions of the contracts."""
