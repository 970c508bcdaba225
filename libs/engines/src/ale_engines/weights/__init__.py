"""Weights on their way to a server: their files, LoRA adapters, and the fingerprint that proves what a server has."""
