"""Trees of files: packing and unpacking on both sides of the connection, and freezing processes for a snapshot."""
