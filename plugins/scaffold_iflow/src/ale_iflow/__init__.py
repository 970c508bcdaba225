"""The iFlow agent: one control loop with shell, read_file, write_file and finish."""
