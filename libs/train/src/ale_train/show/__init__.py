"""A run in the terminal: its state, its failures, its episodes, and one episode from beginning to end (`ale show`)."""
