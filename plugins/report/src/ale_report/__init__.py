"""The report of a run: one HTML page (`ale report`)."""
