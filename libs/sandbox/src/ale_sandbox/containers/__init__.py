"""Sandboxes that are containers, run by a container engine on this machine."""
