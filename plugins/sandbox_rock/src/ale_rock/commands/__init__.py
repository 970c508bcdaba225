"""The command line `ale rock`."""
