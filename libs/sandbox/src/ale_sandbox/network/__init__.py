"""What a sandbox may reach: the network policy, and the gate through which this process enforces it."""
