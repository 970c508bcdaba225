"""Answers from a list, a function, a recording, or at random; no model."""

from ale_scripted.engine import ScriptedEngine
from ale_scripted.sources import ScriptedCall

__all__ = ["ScriptedCall", "ScriptedEngine"]
