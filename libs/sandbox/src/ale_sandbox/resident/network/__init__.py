"""The network inside a sandbox: its sockets, its DNS and the relay to the host."""
