"""The run folder: one SQLite file, and the files beside it."""
