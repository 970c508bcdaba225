"""Answers from a list, a function, a recording, or at random; no model."""
