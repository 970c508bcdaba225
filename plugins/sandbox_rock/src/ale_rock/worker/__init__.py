"""The worker: one on each machine. It owns a provider of sandboxes and serves them to the admin over HTTP."""
