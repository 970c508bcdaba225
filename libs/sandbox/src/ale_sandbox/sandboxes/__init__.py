"""Sandboxes with a resident: those of this process, and those of other processes that it attaches to."""
