"""What the tests with the official clients share: a tool for each API, answers, and a check of the tokens."""

from __future__ import annotations

from typing import Any

from served_sessions import ServedSession

from ale_testing.fake_engines import CALL, ScriptedEngine

TWO = f"I look.{CALL}{CALL.replace('ls', 'pwd')}"
LONG = "A long answer of several words, so that a stream has more than one piece of it to carry. " * 4
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "shell", "description": "Runs.", "parameters": PARAMETERS}}
RESPONSES_TOOL: Any = {"type": "function", "name": "shell", "parameters": PARAMETERS, "strict": False}
ANTHROPIC_TOOL: Any = {"name": "shell", "description": "Runs.", "input_schema": PARAMETERS}


def exact(session: ServedSession, engine: ScriptedEngine) -> None:
    """Every call went on from the very tokens that were sampled before: all is one line."""
    (sequence,) = session.recorder.sequences
    for request, chunk in zip(engine.requests, session.recorder.chunks, strict=True):
        assert request.token_ids == sequence.token_ids[: chunk.start]
