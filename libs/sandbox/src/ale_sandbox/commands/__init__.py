"""`ale sandbox`: list, remove and prune sandboxes, and run commands in those of other processes."""
