"""Persistent shells, which keep their state from one command to the next."""
