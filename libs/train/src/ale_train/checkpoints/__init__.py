"""Checkpoints in a run folder, and which runs can go on from them."""
