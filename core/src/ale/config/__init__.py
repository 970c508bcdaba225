"""The run file: YAML, references, and the typed models of its sections."""
