"""Trees of files in and out of a sandbox: the host's side."""
