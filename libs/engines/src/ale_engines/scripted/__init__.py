"""An engine without a model: answers from a list, a function or a recording, or random tokens."""

from ale_engines.scripted.answer_sources import ScriptedCall
from ale_engines.scripted.engine import ScriptedEngine

__all__ = ["ScriptedCall", "ScriptedEngine"]
