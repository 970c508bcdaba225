"""Observers without dependencies of their own: metrics as lines, and the audit log."""
