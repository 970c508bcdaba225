"""Finds the tasks that are fit for reinforcement learning: `ale tasks check` and `ale tasks select`."""
