"""The run file: its keys as typed models, how it is read, and how it is loaded."""
