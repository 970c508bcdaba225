"""Answers from a list, a function, a recording, or at random; no model."""

from ale_scripted.engine import ScriptedCall, ScriptedEngine

__all__ = ["ScriptedCall", "ScriptedEngine"]
