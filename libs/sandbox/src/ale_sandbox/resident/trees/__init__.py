"""Trees of files: reading and writing them on both sides of the connection, and freezing processes for a snapshot."""
