"""Resets a sandbox to its state before the first command, and checks that it is in that state."""
