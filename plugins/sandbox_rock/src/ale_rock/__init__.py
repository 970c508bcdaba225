"""Sandboxes as a service in the API of ROCK: the admin, the worker on each machine, and the provider `rock`."""
