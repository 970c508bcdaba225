"""Environments of the GEM API, each in a sandbox of its own, and clients of them."""
